// Batches for the mock model.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "yoke/tensor.hpp"

namespace yoke::testing {

// The micro-batches of one data rank for one step, with the memory behind them. Tokens come from
// the global sample index, so every layout of the same global batch sees the same samples; some
// targets are -1 (no loss), so micro-batches differ in weight.
class MockBatch {
 public:
  struct Layout {
    int64_t global_batch = 8, micro_batch = 8;  // sequences per step; per data rank and forward
    int32_t data_rank = 0, data_ranks = 1;
    int64_t seq_len = 3;
  };
  MockBatch(const Layout& layout, int64_t step);
  const YokeBatch& batch() const { return batch_; }
  void claim_weight(double token_weight) { batch_.token_weight = token_weight; }

 private:
  struct Micro {
    std::vector<int64_t> tokens, targets;
    int64_t shape[2];
    YokeInput inputs[2];
    YokeMicroBatch micro;
  };
  std::vector<std::unique_ptr<Micro>> micros_;
  std::vector<const YokeMicroBatch*> pointers_;
  YokeBatch batch_{};
};

}  // namespace yoke::testing
