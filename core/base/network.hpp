// Addresses and ports of this machine. Nothing is thrown; a fault is a text, "" = none.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <string>

#include "core/base/file_descriptor.hpp"

namespace yoke {

struct SocketAddress {
  sockaddr_storage socket{};
  socklen_t size = 0;
  std::string address;  // "10.0.0.1"
  std::string fault;    // "Name or service not known"
};

// IPv4 first, as c10d does it. May ask the network.
SocketAddress resolve(const std::string& host, int port);
bool is_own_address(const SocketAddress& at);   // can a socket here be bound to it?
std::string try_port(const SocketAddress& at);  // can it be listened on?
std::string try_loopback();
// A socket that listens at this port: behind a loopback address only there, else at every address
// of this machine. Not open if there is a fault.
FileDescriptor listen_at(const SocketAddress& at, std::string& fault);
// Does somebody answer there? Waits for a second at most.
std::string try_connect(const SocketAddress& at);
bool has_interface(const std::string& name);

}  // namespace yoke
