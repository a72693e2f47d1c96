// Decides whether a run that has failed is started again.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace yoke {

// A run is started again only after the loss of a rank: errors of the configuration, of a backend
// or of the training would come again. A run that cannot save a step between two failures is given
// up after the third: something is broken for good.
class RestartPolicy {
 public:
  explicit RestartPolicy(int restarts) : left_(restarts) {}

  // exit_code: of the attempt that has ended. saved_step: the newest saved step, -1 = none; empty =
  // unknown, and then another machine counts the attempts that saved nothing. Returns how long to
  // wait before the next attempt, at most three seconds, or nothing if there is none; reason() says
  // why.
  std::optional<std::chrono::milliseconds> next(int exit_code, std::optional<int64_t> saved_step);
  // Returns why there is no further attempt; "" if the run ended for a reason of its own, or no
  // restarts were asked for.
  const std::string& reason() const { return reason_; }

 private:
  int left_;
  int used_ = 0;
  int fruitless_ = 0;  // attempts in a row that saved no new step
  std::optional<int64_t> saved_step_;
  std::string reason_;
};

}  // namespace yoke
