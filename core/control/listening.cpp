// Debian and Ubuntu map a machine's own name to 127.0.1.1 in /etc/hosts. On such a machine rank 0
// would listen where no other machine can reach it, so a loopback address is never used if other
// machines take part. Members need no name of their own: the near end of their connection to the
// hub is an address that reaches this machine.
#include "core/control/listening.hpp"

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstring>

#include "core/base/network.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr std::chrono::seconds kLookup{10};
constexpr int kConnectMilliseconds = 1000;
constexpr std::chrono::milliseconds kAfterLost{1000};

std::string reason(int error = errno) {
  return std::strerror(error);
}

bool unix_address(const std::string& path, sockaddr_un& address, std::string& fault) {
  address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    fault = concat("the path has ", path.size(), " bytes; a socket allows ") +
            concat(sizeof address.sun_path - 1, " (set TMPDIR to a shorter path)");
    return false;
  }
  std::memcpy(address.sun_path, path.c_str(), path.size());
  return true;
}

}  // namespace

// The kernel drops a connection whose data nobody acknowledges. It must not do so before this
// program takes the other side for lost, because lost_after says how long a network may be silent.
void configure_connection(int socket, std::chrono::milliseconds lost_after) {
  const int yes = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  if (lost_after.count() == 0) return;
  const int limit = static_cast<int>(std::min<int64_t>((lost_after + kAfterLost).count(), INT_MAX));
  ::setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit, sizeof limit);
}

namespace {

FileDescriptor connected(int family, const sockaddr* address, socklen_t size, std::string& fault) {
  FileDescriptor fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (::connect(fd.get(), address, size) != 0) {
    if (errno != EINPROGRESS) {
      fault = reason();
      return {};
    }
    pollfd writable{fd.get(), POLLOUT, 0};
    if (::poll(&writable, 1, kConnectMilliseconds) != 1) {
      fault = "no answer";
      return {};
    }
    int error = 0;
    socklen_t length = sizeof error;
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) {
      fault = reason(error);
      return {};
    }
  }
  return fd;
}

using NameOf = int (*)(int, sockaddr*, socklen_t*);

std::string address_text(int socket, NameOf name_of) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  if (name_of(socket, reinterpret_cast<sockaddr*>(&storage), &size) != 0) return "";
  return numeric_address(storage, size);
}

}  // namespace

std::string ControlAddress::text() const {
  return socket.empty() ? concat(host, ":", port) : socket;
}

FileDescriptor listen_for_members(const ControlAddress& at, bool one_machine, std::string& fault) {
  if (at.socket.empty()) {
    const SocketAddress address = resolve(at.host, at.port);
    fault = address.fault;
    if (!fault.empty()) return {};
    const bool exact = is_loopback(address.address) ? one_machine : is_own_address(address);
    return exact ? listen_on(address, fault) : listen_everywhere(address, fault);
  }
  sockaddr_un address{};
  if (!unix_address(at.socket, address, fault)) return {};
  FileDescriptor fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(fd.get(), SOMAXCONN) != 0) {
    fault = reason();
    fd.reset();
  }
  return fd;
}

HubSocket connect_to_hub(const ControlAddress& at, std::chrono::milliseconds lost_after) {
  HubSocket result;
  if (at.socket.empty()) {
    const SocketAddress there = resolve_within(at.host, at.port, kLookup);
    result.has_address = there.fault.empty();
    result.fault = there.fault;
    if (result.has_address) {
      const auto* address = reinterpret_cast<const sockaddr*>(&there.socket);
      result.fd = connected(there.socket.ss_family, address, there.size, result.fault);
      if (result.fd.open()) configure_connection(result.fd.get(), lost_after);
    }
    return result;
  }
  sockaddr_un address{};
  if (unix_address(at.socket, address, result.fault)) {
    result.fd = connected(
        AF_UNIX, reinterpret_cast<const sockaddr*>(&address), sizeof address, result.fault);
  }
  return result;
}

std::string near_address(int socket) {
  return address_text(socket, ::getsockname);
}
std::string far_address(int socket) {
  return address_text(socket, ::getpeername);
}

int near_port(int socket) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&storage), &size);
  return ntohs(storage.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(storage).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(storage).sin_port);
}

// Connecting a datagram socket sends nothing; it only makes the kernel choose a route.
std::string address_towards(const std::string& host) {
  const SocketAddress there = resolve(host, 9);
  if (!there.fault.empty()) return "";
  const FileDescriptor fd(::socket(there.socket.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&there.socket), there.size) != 0)
    return "";
  return near_address(fd.get());
}

bool is_loopback(const std::string& address) {
  return address.empty() || address.starts_with("127.") || address == "::1";
}

}  // namespace yoke
