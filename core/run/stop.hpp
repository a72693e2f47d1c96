// Ctrl-C and SIGTERM. The first signal requests an orderly stop after the current step, a second one
// cancels the step. The same signal again within kSameSignal counts once: `timeout`, a batch system or
// a terminal often reaches this process both directly and through the launcher.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "core/comm/world.hpp"

namespace yoke {

inline constexpr std::chrono::seconds kSameSignal{2};

// Installs the signal handlers of this process. Call it once, before ranks start.
void install_stop_handlers();
// Returns the first of SIGINT and SIGTERM that arrived; 0 = none. Any thread.
int stop_signal();
// The flag that the second signal sets. Any thread.
const std::atomic<bool>& cancel_flag();

// Lets all ranks stop at the same step, although signals reach them at different times. One per
// rank.
//
// Rank 0 publishes the step at which to stop. No rank can finish a step that rank 0 has not
// entered. So whatever rank 0 publishes before its step s is visible to every rank before that
// rank's step s + 1, and no collective is needed.
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
