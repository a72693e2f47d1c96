// The data of the checks: the same samples for every layout of a global batch.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "yoke/parallel_backend.h"

namespace yoke::conformance {

// How a step is split over data ranks.
struct Split {
  int32_t global_batch = 8;
  int32_t micro_batch = 8;  // sequences of a data rank and forward
  int32_t data_rank = 0, data_ranks = 1;
  bool uneven = false;  // many targets do not count, on some data ranks more than on others
};

// The micro-batches of one data rank in one step (1 is the first), with the memory behind them.
class Batch {
 public:
  Batch(const Split& split, int64_t step);
  ~Batch();  // poisons the memory: what a backend kept of it is garbage now
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  YokeBatch& batch() { return batch_; }
  // Lays every input at an offset in its memory, with strides written out.
  void use_offsets();

 private:
  struct Micro {
    std::vector<int64_t> values[3];
    int64_t shape[2];
    int64_t strides[2];
    YokeInput inputs[3];
    YokeMicroBatch micro;
  };
  std::vector<std::unique_ptr<Micro>> micros_;
  std::vector<const YokeMicroBatch*> pointers_;
  YokeBatch batch_{};
};

}  // namespace yoke::conformance
