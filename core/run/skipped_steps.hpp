// Steps whose gradients are not finite: no rank updates anything in such a step, and its number
// comes again with the next batch. In fp16 runs this is how the scale of the loss is found.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "core/base/log.hpp"
#include "core/checkpoint/checkpoint.hpp"
#include "core/config/run_config.hpp"
#include "core/run/loss_scaler.hpp"
#include "yoke/parallel_backend.h"

namespace yoke {

// Returns whether a step has changed nothing because its gradients are not finite. The result is
// the same on every rank.
bool is_skipped(const YokeStepResult& result);

// Counts skipped steps and owns the scale of the loss. One per rank; all ranks pass the same
// results, so they agree without communication. Used by one thread at a time.
class SkippedSteps {
 public:
  // The messages are logged if rank is 0.
  SkippedSteps(const RunConfig& run, int rank, Log& log);

  // Returns YokeStepArgs.loss_scale of the next training step; 0 = the run has none.
  double loss_scale() const { return scaler_ ? scaler_->scale() : 0; }

  // Call after every training step. Returns true if the step was skipped; the next step then has
  // the same number. Throws Error(DATA_LOSS) if the run cannot continue: the loss of a step that
  // was not skipped is not finite, more than train.max_skipped steps in a row were skipped, or the
  // scale is at its minimum already. Throws Error(INTERNAL) if the backend has not used the scale
  // that it was given.
  bool after(int64_t step, const YokeStepResult& result);

  // Returns the number of skipped steps of the run.
  int64_t total() const { return total_; }

  // Write what a checkpoint keeps, and restore it: the number of skipped steps and the loss scale.
  // A run that has a scale and resumes from a checkpoint without one, such as that of a bf16 run,
  // starts with the initial scale, with a warning.
  void save(CheckpointInfo& info) const;
  void restore(const CheckpointInfo& info);

 private:
  void skip(int64_t step, const YokeStepResult& result);
  std::string overflowed() const;

  std::optional<LossScaler> scaler_;
  const int64_t most_in_a_row_;
  const int rank_;
  Log& log_;
  int64_t total_ = 0;
  int64_t in_a_row_ = 0;
  std::map<int64_t, int64_t> counts_;  // skipped steps of this process: how often each number was
};

}  // namespace yoke
