// Forward and backward of one micro-batch, block by block, with recomputation of activations.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "plugins/megatron_compat/gather.hpp"
#include "plugins/megatron_compat/gradients.hpp"
#include "plugins/megatron_compat/settings.hpp"

namespace yoke::megatron_compat {

// Consecutive blocks that keep nothing but their input, and run forward again before their
// backward.
struct RecomputedUnit {
  uint64_t first, last;
};

// Returns the units of a model in ascending order. All blocks but the first and the last belong to
// layers; the halves of a layer count as one. kUniform: units of `layers` layers. kBlock: the first
// `layers` layers, each a unit.
std::vector<RecomputedUnit> recomputed_units(const YokeModelSummary& model,
                                             Recompute recompute,
                                             int64_t layers);

// Returns the bytes that blocks keep for the backward of a micro-batch of `sequences` at the peak
// of a step, -1 if the model does not report it.
int64_t activation_bytes(const YokeModelSummary& model,
                         const std::vector<RecomputedUnit>& units,
                         int64_t sequences);

// One thread at a time. Everything is collective, because parameters are gathered before blocks and
// gradients are reduced behind them.
class Pass {
 public:
  // Everything must outlive the pass.
  Pass(const YokeModel& model,
       const YokeHost& host,
       std::vector<RecomputedUnit> units,
       Gather& gather,
       Gradients& gradients);

  struct Result {
    double loss = 0, targets = 0;  // sum over the targets of the micro-batch, and their number
  };
  // Run a micro-batch. loss_grad: what the gradient of the sum of losses is multiplied by. Throw
  // Error(CANCELLED) if the host stops the run, or the error of a block; nothing is kept then.
  Result train(const YokeMicroBatch& micro, double loss_grad);
  Result evaluate(const YokeMicroBatch& micro);

 private:
  // What a block keeps between its forward and its backward.
  struct BlockState {
    void* saved = nullptr;  // handle of the model; consumed by block_backward or drop_saved
    ManagedTensor carry;    // output of the block
  };
  template <class F>
  Result run(F&& body);
  Result forward(const YokeMicroBatch& micro, bool training);
  YokeForwardResult forward_block(const YokeMicroBatch& micro, uint64_t block, bool save);
  void backward(const YokeMicroBatch& micro, double loss_grad);
  void recompute(const YokeMicroBatch& micro, const RecomputedUnit& unit);
  const RecomputedUnit* unit_of(uint64_t block) const;
  void check_cancel() const;

  const YokeModel& model_;
  const YokeHost& host_;
  const std::vector<RecomputedUnit> units_;
  Gather& gather_;
  Gradients& gradients_;
  std::vector<BlockState> blocks_;
};

}  // namespace yoke::megatron_compat
