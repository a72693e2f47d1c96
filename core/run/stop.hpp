// Ctrl-C and SIGTERM: the first asks for an orderly end after the current step, the second cancels
// it.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/comm/world.hpp"

namespace yoke {

// Installs the handlers for this process. Call once, before ranks start.
void install_stop_handlers();
int stop_signal();                       // 0, or the first of SIGINT, SIGTERM that arrived
const std::atomic<bool>& cancel_flag();  // set by the second signal

// Ranks get signals at different times but must stop at the same step. Rank 0 publishes the step
// after which to stop; because no rank can finish a step that rank 0 has not entered, every rank
// sees what rank 0 published before its step s when it looks before its own step s + 1. No
// collective is needed.
class StopAgreement {
 public:
  explicit StopAgreement(World& world) : world_(world) {}

  // Before step s: true = all ranks stop here, with s - 1 steps done.
  bool stop_before(int64_t step);

 private:
  World& world_;
  bool published_ = false;
};

}  // namespace yoke
