// Forward and backward block by block, with recomputation of activations, of a model that is not
// divided between ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "sdk/compat/activations.hpp"
#include "sdk/compat/batch_pass.hpp"
#include "yoke/backend.hpp"

namespace yoke::compat {

class BlockPass final : public BatchPass {
 public:
  // Everything must outlive the pass.
  BlockPass(const YokeModel& model,
            const YokeHost& host,
            std::vector<RecomputedUnit> units,
            PassHooks hooks);

  RankTotals train(const YokeBatch& batch, Loss loss, int data_ranks) override;
  RankTotals evaluate(const YokeBatch& batch) override;

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
  PassHooks hooks_;
  std::vector<BlockState> blocks_;
};

}  // namespace yoke::compat
