#include "core/launch/network.hpp"

#include <net/if.h>
#include <netdb.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "core/launch/subprocess.hpp"

namespace yoke {
namespace {

std::string reason() {
  return std::strerror(errno);
}

FileDescriptor tcp_socket(int family) {
  return FileDescriptor(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
}

const sockaddr* address_of(const sockaddr_storage& socket) {
  return reinterpret_cast<const sockaddr*>(&socket);
}

}  // namespace

Resolved resolve(const std::string& host, int port) {
  Resolved result;
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
  std::array<char, NI_MAXHOST> text{};
  ::getnameinfo(
      found->ai_addr, found->ai_addrlen, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  result.address = text.data();
  ::freeaddrinfo(found);
  return result;
}

bool is_own_address(const Resolved& at) {
  const FileDescriptor fd = tcp_socket(at.socket.ss_family);
  return ::bind(fd.get(), address_of(at.socket), at.size) == 0 || errno != EADDRNOTAVAIL;
}

std::string try_port(const Resolved& at) {
  const FileDescriptor fd = tcp_socket(at.socket.ss_family);
  const int yes = 1;  // as c10d's store does: a port that a run has just left is free
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

bool has_interface(const std::string& name) {
  return ::if_nametoindex(name.c_str()) != 0;
}

}  // namespace yoke
