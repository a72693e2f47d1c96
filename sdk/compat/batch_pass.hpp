// Runs the micro-batches of a step on one rank.
#pragma once

#include "sdk/compat/batch_loss.hpp"
#include "yoke/parallel_backend.h"

namespace yoke::compat {

// Sums over the micro-batches of a step: of one rank, or of all ranks.
struct BatchTotals {
  double loss = 0, targets = 0;
  double uneven = 0;  // micro-batches with another number of targets than the mean
};

// One thread at a time. Collective over the ranks that share a batch.
class BatchPass {
 public:
  virtual ~BatchPass() = default;
  // Runs forward and backward of all micro-batches. Throws Error(INVALID_ARGUMENT) if the batch is
  // empty or announces wrong numbers of targets, Error(CANCELLED) if the host stops the run, and
  // the error of a block. Nothing of the step is kept then.
  virtual BatchTotals train(const YokeBatch& batch, Loss loss, int data_ranks) = 0;
  // Runs the forward of all micro-batches. Throws as train() does.
  virtual BatchTotals evaluate(const YokeBatch& batch) = 0;
};

}  // namespace yoke::compat
