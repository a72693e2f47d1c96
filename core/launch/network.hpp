// Addresses and ports of this machine. Nothing is thrown; a fault is a text, "" = none.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <string>

namespace yoke {

struct Resolved {
  sockaddr_storage socket{};
  socklen_t size = 0;
  std::string address;  // "10.0.0.1"
  std::string fault;    // "Name or service not known"
};

// IPv4 first, as c10d does it. May ask the network.
Resolved resolve(const std::string& host, int port);
bool is_own_address(const Resolved& at);   // can a socket here be bound to it?
std::string try_port(const Resolved& at);  // can it be listened on?
std::string try_loopback();
bool has_interface(const std::string& name);

}  // namespace yoke
