// Runs the micro-batches of a step on one rank.
#pragma once

#include <ATen/core/Tensor.h>

#include "sdk/compat/batch_loss.hpp"
#include "sdk/mesh/part/stage_pass.hpp"
#include "yoke/error.hpp"

namespace yoke::compat {

// Sums over the micro-batches of a step, of all ranks.
struct BatchTotals {
  double loss = 0, targets = 0;
  double uneven = 0;  // micro-batches with another number of targets than the mean
};

// The same, of one rank. The loss is an fp64 scalar, which may be on a device, where it need not be
// computed yet.
struct RankTotals {
  at::Tensor loss;
  double targets = 0, uneven = 0;
};

// What an engine does between blocks.
using PassHooks = mesh::StageHooks;

// Throws Error(INVALID_ARGUMENT) if a batch has no micro-batch.
inline void require_micros(const YokeBatch& batch) {
  if (batch.num_micros == 0)
    throw Error(YOKE_INVALID_ARGUMENT, "step: the batch has no micro-batch");
}

// One thread at a time. Collective over the ranks that share a batch.
class BatchPass {
 public:
  virtual ~BatchPass() = default;
  // Runs forward and backward of all micro-batches. data_ranks: the number of ranks with different
  // data. Throws Error(INVALID_ARGUMENT) if the batch is empty, or if a loss that is not per token
  // needs numbers of targets and the batch announces wrong ones; Error(CANCELLED) if the host stops
  // the run; and the error of a block. Nothing of the step is kept then.
  virtual RankTotals train(const YokeBatch& batch, Loss loss, int data_ranks) = 0;
  // Runs the forward of all micro-batches. Throws as train() does, but needs no numbers of targets.
  virtual RankTotals evaluate(const YokeBatch& batch) = 0;
};

}  // namespace yoke::compat
