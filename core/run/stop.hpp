// Ctrl-C and SIGTERM. The first signal requests an orderly stop after the current step; a second
// one cancels the step. The same signal again within kSameSignal counts once: `timeout`, a batch
// system or a terminal often sends a signal to this process both directly and through the launcher.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "core/comm/world.hpp"

namespace yoke {

inline constexpr std::chrono::seconds kSameSignal{2};

// Installs the signal handlers of this process. Call it once, before ranks start.
void install_stop_handlers();
// Returns the first of SIGINT and SIGTERM that arrived; 0 = none. Thread-safe.
int stop_signal();
// Returns the flag that the second signal sets. Thread-safe.
const std::atomic<bool>& cancel_flag();

// Lets all ranks stop at the same step, although signals reach them at different times. One per
// rank.
//
// Rank 0 publishes the step at which to stop. No rank can finish a step that rank 0 has not
// entered. So what rank 0 publishes before it enters step s is visible to each rank before that
// rank enters step s + 1, and no collective is needed.
class StopAgreement {
 public:
  explicit StopAgreement(World& world) : world_(world) {}

  // Call before every step. Returns true if all ranks stop before `step`, with step - 1 steps done.
  // Not collective.
  bool stop_before(int64_t step);

 private:
  World& world_;
  bool published_ = false;  // rank 0 has published the step
};

}  // namespace yoke
