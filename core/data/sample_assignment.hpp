// The rule that assigns the samples of a step to data ranks. No LibTorch.
#pragma once

#include <cstdint>

namespace yoke {

// Which samples of a global batch one data rank trains on. Training and evaluation both use this
// rule; no other code repeats it.
//
// The global batch is divided into consecutive micro-batches. Within a micro-batch, every data rank
// takes `micro_batch` neighbouring samples, in the order of the data ranks. With 2 data ranks, 2
// micro-batches and micro_batch = 3, the samples 0 to 11 belong to
//
//   sample       0 1 2   3 4 5   6 7 8   9 10 11
//   micro-batch  0       0       1       1
//   data rank    0       1       0       1
//
// The samples of all data ranks together are the same for every layout of one global batch, so
// every layout trains on the same tokens in the same step.
struct SampleAssignment {
  int32_t data_rank = 0;     // this rank's number among the data ranks
  int32_t data_ranks = 1;    // dp_replicate x dp_shard
  int32_t accumulation = 1;  // micro-batches of a step
  int32_t micro_batch = 1;   // samples of one micro-batch on one data rank

  // Returns the number of samples of a step over all data ranks.
  int64_t global_batch() const { return int64_t{data_ranks} * accumulation * micro_batch; }

  // Returns the global number of this data rank's first sample in micro-batch `micro` of the global
  // batch that starts at sample `start`. The other samples of the micro-batch follow it.
  int64_t first_sample(int64_t start, int64_t micro) const {
    return start + (micro * data_ranks + data_rank) * micro_batch;
  }
};

}  // namespace yoke
