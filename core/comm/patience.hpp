// Waiting for something that can only be looked at again and again: no store can be woken by a
// cancel flag or by the end of another thread.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "core/comm/communicator.hpp"

namespace yoke {

class Patience {
 public:
  using State = std::function<std::string()>;  // how things stand, as a sentence

  // From now on, as long as options.timeout. `awaited`: for the message of a cancelled wait.
  Patience(const CommOptions& options, std::string awaited);

  // Between two looks: sleeps, longer and longer. False when the time is up. Tells state() to
  // options.progress every five seconds, if there is both. Throws Error(CANCELLED) if the cancel
  // flag is set.
  bool wait(const State& state = {});

 private:
  using Clock = std::chrono::steady_clock;
  const CommOptions& options_;
  const std::string awaited_;
  const Clock::time_point deadline_;
  Clock::time_point next_word_;
  std::chrono::microseconds pause_{50};
};

}  // namespace yoke
