// What one data rank feeds into one step, as the contract wants it.
#pragma once

#include <cstdint>
#include <vector>

#include "core/data/token_stream.hpp"
#include "yoke/parallel_backend.h"

namespace yoke {

// How the samples of a step are dealt out; the same for training and evaluation.
struct Deal {
  int32_t data_rank = 0, data_ranks = 1;
  int32_t accumulation = 1;  // micro-batches
  int32_t sequences = 1;     // per micro-batch
  int64_t global_batch() const { return int64_t{data_ranks} * accumulation * sequences; }
};

// Owns tokens, targets and positions of the micro-batches and the structs that point at them.
class Batch {
 public:
  // The global batch that starts at `sample`; this data rank's part of it.
  Batch(const DataSet& data, const Sampler& part, int64_t sample, const Deal& deal);
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  const YokeBatch& get() const { return batch_; }
  int64_t tokens() const {
    return static_cast<int64_t>(batch_.token_weight);
  }  // of the global batch

 private:
  struct Micro {
    HostMicroBatch host;
    int64_t shape[2];
    std::vector<YokeInput> inputs;
    YokeMicroBatch contract;
  };
  std::vector<Micro> micros_;
  std::vector<const YokeMicroBatch*> pointers_;
  YokeBatch batch_;
};

}  // namespace yoke
