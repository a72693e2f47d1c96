// The declarations that c10d's Gloo backend needs from Gloo. See README.md of this folder.
#pragma once

#include <chrono>

namespace gloo {

// The connections to all peers of one group. LibTorch creates and destroys them.
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
  void closeConnections();
};

}  // namespace gloo
