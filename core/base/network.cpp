#include "core/base/network.hpp"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <thread>

#include "core/base/subprocess.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr int kConnectMilliseconds = 1000;

std::string reason() {
  return std::strerror(errno);
}

FileDescriptor tcp_socket(int family) {
  return FileDescriptor(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
}

const sockaddr* address_of(const sockaddr_storage& socket) {
  return reinterpret_cast<const sockaddr*>(&socket);
}

// Calls f(interface, address) for each address of this machine, IPv4 first, until it returns true.
void for_each_address(const std::function<bool(const char*, const std::string&)>& f) {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return;
  bool done = false;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* i = all; i != nullptr && !done; i = i->ifa_next) {
      if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != family) continue;
      sockaddr_storage socket{};
      const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      std::memcpy(&socket, i->ifa_addr, size);
      done = f(i->ifa_name, numeric_address(socket, size));
    }
  }
  ::freeifaddrs(all);
}

}  // namespace

SocketAddress resolve(const std::string& host, int port) {
  SocketAddress result;
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  int error = EAI_NONAME;
  for (int family : {AF_INET, AF_INET6}) {
    wanted.ai_family = family;
    error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found);
    if (error == 0) break;
  }
  if (error != 0) {
    result.fault = ::gai_strerror(error);
    return result;
  }
  std::memcpy(&result.socket, found->ai_addr, found->ai_addrlen);
  result.size = found->ai_addrlen;
  result.address = numeric_address(result.socket, result.size);
  ::freeaddrinfo(found);
  return result;
}

SocketAddress resolve_within(const std::string& host, int port, std::chrono::milliseconds limit) {
  auto result = std::make_shared<std::promise<SocketAddress>>();
  std::future<SocketAddress> future = result->get_future();
  std::thread([result, host, port] { result->set_value(resolve(host, port)); }).detach();
  if (future.wait_for(limit) == std::future_status::ready) return future.get();
  SocketAddress none;
  none.fault = string_printf("no answer of a name server within %.3g s",
                             static_cast<double>(limit.count()) / 1000);
  return none;
}

bool is_own_address(const SocketAddress& at) {
  const FileDescriptor fd = tcp_socket(at.socket.ss_family);
  return ::bind(fd.get(), address_of(at.socket), at.size) == 0 || errno != EADDRNOTAVAIL;
}

std::string try_port(const SocketAddress& at) {
  const FileDescriptor fd = tcp_socket(at.socket.ss_family);
  const int yes = 1;  // as in c10d's store: the port of a run that just ended counts as free
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (::bind(fd.get(), address_of(at.socket), at.size) != 0 || ::listen(fd.get(), 1) != 0)
    return reason();
  return "";
}

std::string try_loopback() {
  sockaddr_in here{};
  here.sin_family = AF_INET;
  here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof here;
  auto* address = reinterpret_cast<sockaddr*>(&here);
  const FileDescriptor server = tcp_socket(AF_INET), client = tcp_socket(AF_INET);
  if (::bind(server.get(), address, size) != 0 || ::listen(server.get(), 1) != 0) return reason();
  ::getsockname(server.get(), address, &size);
  return ::connect(client.get(), address, size) == 0 ? "" : reason();
}

FileDescriptor listen_on(const SocketAddress& at, std::string& fault) {
  FileDescriptor fd = tcp_socket(at.socket.ss_family);
  const int yes = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (::bind(fd.get(), address_of(at.socket), at.size) != 0 || ::listen(fd.get(), SOMAXCONN) != 0) {
    fault = reason();
    fd.reset();
  }
  return fd;
}

FileDescriptor listen_everywhere(const SocketAddress& at, std::string& fault) {
  SocketAddress here = at;
  if (here.socket.ss_family == AF_INET) {
    reinterpret_cast<sockaddr_in&>(here.socket).sin_addr.s_addr = INADDR_ANY;
  } else {
    reinterpret_cast<sockaddr_in6&>(here.socket).sin6_addr = in6addr_any;
  }
  return listen_on(here, fault);
}

// NI_NUMERICHOST is essential: without it getnameinfo() asks the name server, which may be silent.
std::string numeric_address(const sockaddr_storage& socket, socklen_t size) {
  if (socket.ss_family != AF_INET && socket.ss_family != AF_INET6) return "";
  std::array<char, NI_MAXHOST> text{};
  ::getnameinfo(address_of(socket), size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return text.data();
}

std::string try_connect(const SocketAddress& at) {
  const FileDescriptor fd = tcp_socket(at.socket.ss_family);
  ::fcntl(fd.get(), F_SETFL, O_NONBLOCK);
  if (::connect(fd.get(), address_of(at.socket), at.size) == 0) return "";
  if (errno != EINPROGRESS) return reason();
  pollfd writable{fd.get(), POLLOUT, 0};
  if (::poll(&writable, 1, kConnectMilliseconds) != 1) return "no answer";
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error == 0 ? "" : std::strerror(error);
}

std::string own_host() {
  char host[256] = "unknown host";
  ::gethostname(host, sizeof host - 1);
  return host;
}

bool has_interface(const std::string& name) {
  return ::if_nametoindex(name.c_str()) != 0;
}

std::string address_of_interface(const std::string& name) {
  std::string found;
  for_each_address([&](const char* interface, const std::string& address) {
    if (interface == name) found = address;
    return !found.empty();
  });
  return found;
}

std::string interface_with(const std::string& wanted) {
  std::string found;
  for_each_address([&](const char* interface, const std::string& address) {
    if (address == wanted) found = interface;
    return !found.empty();
  });
  return found;
}

}  // namespace yoke
