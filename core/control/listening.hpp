// Where the hub listens, and how this process reaches it.
#pragma once

#include <chrono>
#include <string>

#include "core/base/file_descriptor.hpp"

namespace yoke {

// The address of a hub: either the path of a Unix socket, for ranks of one machine, or a host and a
// TCP port.
struct ControlAddress {
  std::string socket;
  std::string host;
  int port = 0;
  // Returns "node0:29500", or the path.
  std::string text() const;
};

// Returns a socket that listens at the address. A host that is a loopback address, or no address of
// this machine, is replaced by all addresses if other machines must reach the hub; otherwise the
// hub listens on exactly this address. port 0 = any free port. If it fails, the result is not open
// and `fault` says why.
FileDescriptor listen_for_members(const ControlAddress& at, bool one_machine, std::string& fault);

// A connection to the hub. If there is none, fd is not open and `fault` says why.
struct HubSocket {
  FileDescriptor fd;  // non-blocking
  std::string fault;
  bool has_address = true;  // false: the host could not be looked up
};
// Waits at most ten seconds for a name server and one second for the connection.
HubSocket connect_to_hub(const ControlAddress& at, std::chrono::milliseconds lost_after);

// Sets the options of a control connection: no delay, and a limit for data that nobody
// acknowledges, which is a second longer than lost_after; 0 = the kernel's own limit, about 15
// minutes. Without effect on a Unix socket.
void configure_connection(int socket, std::chrono::milliseconds lost_after);

// Returns the numeric address of the near or far end of a socket; "" for a Unix socket.
std::string near_address(int socket);
std::string far_address(int socket);
int near_port(int socket);

// Returns the address from which this machine would reach `host`; "" = it has no route there.
std::string address_towards(const std::string& host);

// "127.0.0.1", "::1" and "" (a Unix socket) cannot be reached from other machines.
bool is_loopback(const std::string& address);

}  // namespace yoke
