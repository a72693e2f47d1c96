// Addresses and ports of this machine. No function throws; a failure is returned as a text, usually
// the system's description of the error, and "" means success. Thread-safe.
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
  std::string fault;    // "Name or service not known"; "" = resolved
};

// Looks up a host name or a numeric address; prefers IPv4, as c10d does. May query the network.
SocketAddress resolve(const std::string& host, int port);

// Returns true if a socket of this machine can be bound to the address.
bool is_own_address(const SocketAddress& at);

// Checks that a program can listen on the port.
std::string try_port(const SocketAddress& at);

// Checks that a connection from this machine to itself works.
std::string try_loopback();

// Returns a socket that listens on the port of `at`: for a loopback address on that address only,
// else on every address of this machine. If that fails, the result is not open and `fault` is set.
FileDescriptor listen_at(const SocketAddress& at, std::string& fault);

// Checks that a server accepts connections at the address. Waits at most one second.
std::string try_connect(const SocketAddress& at);

// Returns true if this machine has a network interface with this name, such as "eth0".
bool has_interface(const std::string& name);

}  // namespace yoke
