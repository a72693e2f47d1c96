// A loop that polls until something has happened. The c10d stores offer no wait that a cancel flag
// or the end of another thread could interrupt, so a rank that waits for a key has to look again
// and again.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "core/comm/communicator.hpp"

namespace yoke {

// The pauses between two polls, with a deadline:
//
//   PollLoop poll(options, "rank 0");
//   while (!arrived()) {
//     if (!poll.sleep()) throw ...;  // timeout
//   }
//
// One thread at a time.
class PollLoop {
 public:
  // Returns one sentence about the state of the wait, for the user.
  using Status = std::function<std::string()>;

  enum class Limit { kTimeout, kNone };

  // The deadline is options.timeout from now, or there is none. `awaited` names what the caller
  // waits for; it appears in the message of a cancelled wait. `options` must outlive the loop.
  PollLoop(const CommOptions& options, std::string awaited, Limit limit = Limit::kTimeout);

  // Sleeps before the next poll, 50 us at first and up to 5 ms later. Returns false if the deadline
  // has passed. Every five seconds passes status() to options.progress, if both are set. Throws
  // Error(CANCELLED) if the cancel flag is set.
  bool sleep(const Status& status = {});

 private:
  using Clock = std::chrono::steady_clock;
  const CommOptions& options_;
  const std::string awaited_;
  const Clock::time_point deadline_;
  Clock::time_point next_report_;
  std::chrono::microseconds pause_{50};
};

}  // namespace yoke
