// See the README of this folder.
#pragma once

#include <chrono>

namespace gloo {

// Connections to all peers of one group. Made and destroyed inside LibTorch.
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
  void closeConnections();
};

}  // namespace gloo
