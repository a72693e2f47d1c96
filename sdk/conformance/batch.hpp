// The data of the checks. The samples of a global batch are the same for every layout.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "yoke/parallel_backend.h"

namespace yoke::conformance {

// Which positions of the samples have targets.
enum class Targets {
  kAll,
  kUneven,     // data ranks and micro-batches have different numbers of targets
  kFirstHalf,  // the second half of the samples has none: one of two data ranks has no target
};

// How the global batch of a step is split over data ranks.
struct Split {
  int32_t global_batch = 8;
  int32_t micro_batch = 8;  // sequences of a data rank in one forward
  int32_t data_rank = 0, data_ranks = 1;
  Targets targets = Targets::kAll;
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
  // Makes two micro-batches equal, and multiplies their losses by opposite factors, so that their
  // gradients cancel. Takes effect in a model with FaultInjection::loss_factor_in_positions.
  void cancel(size_t first, size_t second, int64_t factor);

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
