// Runs the micro-batches of a step on one rank.
#pragma once

#include "sdk/compat/batch_loss.hpp"
#include "sdk/compat/block_pass.hpp"

namespace yoke::compat {

// Sums over the micro-batches of a step: of one rank, or of all ranks.
struct BatchTotals {
  double loss = 0, targets = 0;
  double uneven = 0;  // micro-batches with another number of targets than the mean
};

// Returns the sums of what `run` returns for each micro-batch, in their order. last: whether no
// other one follows. Throws Error(INVALID_ARGUMENT) if the batch is empty.
template <class Run>  // BatchTotals(const YokeMicroBatch& micro, bool last)
BatchTotals sum_over_micros(const YokeBatch& batch, Run&& run) {
  if (batch.num_micros == 0)
    throw Error(YOKE_INVALID_ARGUMENT, "step: the batch has no micro-batch");
  BatchTotals totals;
  for (uint64_t m = 0; m < batch.num_micros; ++m) {
    const BatchTotals own = run(*batch.micros[m], m + 1 == batch.num_micros);
    totals.loss += own.loss;
    totals.targets += own.targets;
    totals.uneven += own.uneven;
  }
  return totals;
}

// Runs forward and backward of all micro-batches of this rank, and completes the reductions of
// their gradients. Collective. Throws Error(INVALID_ARGUMENT) if the batch is empty or announces
// wrong numbers of targets, and what the pass and the gradients throw.
template <class Gradients>  // has begin_step(), begin_micro(bool last) and finish()
BatchTotals train_batch(
    BlockPass& pass, Gradients& gradients, Loss loss, const YokeBatch& batch, int data_ranks) {
  gradients.begin_step();
  const auto run = [&](const YokeMicroBatch& micro, bool last) -> BatchTotals {
    gradients.begin_micro(last);
    const auto [sum, targets] = pass.train(micro, loss_grad(loss, batch, micro));
    return {sum, targets, is_uneven(loss, batch, micro, targets, data_ranks) ? 1.0 : 0.0};
  };
  const BatchTotals totals = sum_over_micros(batch, run);
  gradients.finish();
  return totals;
}

// Runs the forward of all micro-batches of this rank. Throws as train_batch() does.
inline BatchTotals evaluate_batch(BlockPass& pass, const YokeBatch& batch) {
  return sum_over_micros(batch, [&](const YokeMicroBatch& micro, bool) -> BatchTotals {
    const auto [sum, targets] = pass.evaluate(micro);
    return {sum, targets, 0};
  });
}

}  // namespace yoke::compat
