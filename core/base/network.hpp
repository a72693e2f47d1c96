// Addresses and ports of this machine. No function throws; a failure is returned as a text, usually
// the system's description of the error, and "" means success. Thread-safe.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
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

// Does the same, but gives up after `limit`. The look-up then continues in a thread that is left
// behind.
SocketAddress resolve_within(const std::string& host, int port, std::chrono::milliseconds limit);

// Returns true if a socket of this machine can be bound to the address.
bool is_own_address(const SocketAddress& at);

// Checks that a program can listen on the port.
std::string try_port(const SocketAddress& at);

// Checks that a connection from this machine to itself works.
std::string try_loopback();

// Return a socket that listens at the address, or on its port on every address of this machine. If
// that fails, the result is not open and `fault` is set.
FileDescriptor listen_on(const SocketAddress& at, std::string& fault);
FileDescriptor listen_everywhere(const SocketAddress& at, std::string& fault);

// Returns an address as a number: "10.0.0.1", "fe80::1"; "" if it is not an internet address.
std::string numeric_address(const sockaddr_storage& socket, socklen_t size);

// Checks that a server accepts connections at the address. Waits at most one second.
std::string try_connect(const SocketAddress& at);

// Returns the name of this machine: "host-a".
std::string own_host();

// Returns true if this machine has a network interface with this name, such as "eth0".
bool has_interface(const std::string& name);

// Returns an address of a network interface, IPv4 if it has one; "" = it has none.
std::string address_of_interface(const std::string& name);

// Returns the name of the interface that has this numeric address; "" = none has it.
std::string interface_with(const std::string& address);

}  // namespace yoke
