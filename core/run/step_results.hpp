// Checks what the backend reports after each step, and that all ranks report the same.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "yoke/parallel_backend.h"

namespace yoke {

// One per rank, used by the thread that trains.
class StepResults {
 public:
  // Call after every step and evaluation. targets: number of targets of the batch, as the host
  // counts them. Throws Error(INTERNAL) if the result is impossible: the loss is the sum over
  // another number of targets, or the norm is negative.
  void check(const YokeStepArgs& args, const YokeStepResult& result, double targets);

  // Returns the latest result.
  const YokeStepResult& last() const { return result_; }
  // Returns a hash of all results so far. The ranks compare it at every report: the host decides by
  // the results what to do next, so ranks with different results would drift apart.
  uint64_t hash() const { return hash_; }
  // Returns the latest result for a message: "step 3: loss_sum 6.2, grad_norm 0.5".
  std::string text() const;

 private:
  uint64_t hash_ = 0;
  int64_t step_ = 0;
  YokeStepResult result_{};
};

// Throws Error(INTERNAL) that names the first rank whose text() differs from that of rank 0.
[[noreturn]] void throw_difference(const std::vector<std::string>& texts);

}  // namespace yoke
