// Measures the network between two machines: whether a connection can be made, how long a message
// takes to the other machine and back, and how fast a stream of bytes gets there. No LibTorch.
#pragma once

#include <memory>
#include <string>
#include <thread>

#include "core/base/file_descriptor.hpp"

namespace yoke {

// Answers the measurements of other machines, in a thread, until it is destroyed.
class PairServer {
 public:
  // Listens at a free port of a numeric address of this machine. Connections that do not begin with
  // `token` are closed. Throws Error(UNAVAILABLE) if no socket can listen there.
  PairServer(const std::string& address, const std::string& token);
  ~PairServer();
  PairServer(const PairServer&) = delete;
  PairServer& operator=(const PairServer&) = delete;

  int port() const { return port_; }

 private:
  void run();
  void serve(int socket) const;

  const std::string token_;
  FileDescriptor listener_, wake_;
  int port_ = 0;
  std::thread thread_;
};

// What one machine has measured towards another one.
struct PairResult {
  int from = 0, to = 0;         // numbers of the machines
  std::string fault;            // why there is no connection; "" = measured
  double round_trip = 0;        // median in seconds
  double bytes_per_second = 0;  // rate of one connection
};

// Measures towards a PairServer. Takes at most about eight seconds. `from` and `to` of the result
// are left to the caller.
PairResult measure_pair(const std::string& address, int port, const std::string& token);

}  // namespace yoke
