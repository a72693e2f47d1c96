// The data of the checks. The samples of a global batch are the same for every layout.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "yoke/parallel_backend.h"

namespace yoke::conformance {

// How the global batch of a step is split over data ranks.
struct Split {
  int32_t global_batch = 8;
  int32_t micro_batch = 8;  // sequences of a data rank in one forward
  int32_t data_rank = 0, data_ranks = 1;
  bool uneven = false;  // whether many targets are ignored, more on some data ranks than on others
};

// The micro-batches of one data rank in one step, with their memory. The first step is 1.
class Batch {
 public:
  Batch(const Split& split, int64_t step);
  ~Batch();  // overwrites the memory, so that a backend that kept a pointer reads garbage
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  YokeBatch& batch() { return batch_; }
  // Gives every input a byte_offset and explicit strides.
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
