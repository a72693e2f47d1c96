// Signals that ask for the end of a run. The first one requests an orderly stop after the current
// step, or before the next batch of an evaluation; a second one cancels the step. The same signal
// again within kSameSignal counts once: `timeout`, a batch system or a terminal often sends a
// signal to this process both directly and through the launcher.
//
// The signals are SIGINT (Ctrl-C), SIGTERM, SIGUSR1 and SIGUSR2, which batch systems send before a
// time limit, and SIGHUP unless it is ignored (nohup).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "core/comm/world.hpp"

namespace yoke {

inline constexpr std::chrono::seconds kSameSignal{2};

// Installs the signal handlers of this process. Call it once, before ranks start.
void install_stop_handlers();
// Returns the first of these signals that arrived; 0 = none. Thread-safe.
int stop_signal();
// Return the flags that the first and the second signal set. Thread-safe.
const std::atomic<bool>& stop_flag();
const std::atomic<bool>& cancel_flag();

// Returns the flag that SIGQUIT sets: the user wants to know where this rank is. It does not stop
// the run. Thread-safe.
std::atomic<bool>& report_flag();

// Returns the exit code of a run that a signal has stopped.
int exit_code_of_stop(int signal, bool saved);

// Lets all ranks stop at the same point, although signals reach them at different times, or reach
// only one of them: a scheduler that takes back one machine signals only the ranks there. One per
// rank.
//
// The points are the calls of the backend's step function, for training and for evaluation, which
// all ranks make in the same order. A rank that got a signal leaves a note. Rank 0 answers with the
// number of the call at which to stop. No rank can finish a call that rank 0 has not entered, and
// post() returns only after all ranks have the note. So what rank 0 posts before its call n is
// known to each rank before its call n + 1, and no collective is needed.
class StopAgreement {
 public:
  explicit StopAgreement(World& world) : world_(world) {}

  // Call before every call of the backend's step function. Returns true if all ranks leave out this
  // call and stop; from then on, it always returns true. Not collective.
  bool stop_now();
  // Returns the signal for which the run stops, the same on all ranks; 0 = it does not stop.
  int signal() const { return signal_; }

 private:
  World& world_;
  int64_t call_ = 0;        // number of the next call of the backend's step function
  bool requested_ = false;  // this rank has posted its signal
  bool published_ = false;  // rank 0 has posted the number of the call
  int signal_ = 0;
};

}  // namespace yoke
