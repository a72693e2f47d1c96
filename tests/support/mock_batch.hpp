// Batches for the mock model.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "yoke/tensor.hpp"

namespace yoke::testing {

// The micro-batches of one data rank for one step, with their memory. Tokens are computed from the
// global sample number, so every layout splits a global batch into the same samples. Some targets
// are -1 (no loss), so micro-batches differ in their number of targets.
class MockBatch {
 public:
  struct Layout {
    int64_t global_batch = 8;  // sequences per step
    int64_t micro_batch = 8;   // sequences per forward on one data rank
    int32_t data_rank = 0, data_ranks = 1;
    int64_t seq_len = 3;
  };
  MockBatch(const Layout& layout, int64_t step);
  const YokeBatch& batch() const { return batch_; }
  // Makes the batch declare a wrong number of targets.
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
