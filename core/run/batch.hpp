// What one data rank feeds into one step, as the contract wants it.
#pragma once

#include <cstdint>
#include <vector>

#include "core/data/token_stream.hpp"
#include "core/verify/rank_report.hpp"
#include "yoke/model.hpp"

namespace yoke {

// How the samples of a step are dealt out; the same for training and evaluation.
struct Deal {
  int32_t data_rank = 0, data_ranks = 1;
  int32_t accumulation = 1;  // micro-batches
  int32_t sequences = 1;     // per micro-batch
  int64_t global_batch() const { return int64_t{data_ranks} * accumulation * sequences; }
};

// Where the samples come from: a token stream, or a family's own.
struct Source {
  const DataSet& data;
  const Samples& own;  // used if data has no stream
};

// Owns the inputs of the micro-batches and the structs that point at them.
class Batch {
 public:
  // The global batch of `part` that starts at `sample`; this data rank's share of it. Throws
  // Error(INVALID_ARGUMENT) if samples of a family differ in roles, shapes or dtypes, or the global
  // batch has no target.
  // On a device the inputs that the backend gets are copies there, made in order on the current
  // stream.
  Batch(const Source& source,
        const Sampler& part,
        int64_t sample,
        const Deal& deal,
        at::Device device = at::kCPU);
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  const YokeBatch& get() const { return batch_; }
  int64_t tokens() const { return tokens_; }  // of the global batch
  const GlobalBatch& global() const { return global_; }
  // Global numbers of this data rank's samples, and the inputs of each micro-batch in host memory.
  const std::vector<int64_t>& samples() const { return samples_; }
  size_t num_micros() const { return micros_.size(); }
  const TorchInputs& inputs(size_t micro) const { return micros_[micro].inputs; }

 private:
  struct Micro {
    TorchInputs inputs;
    std::vector<TensorView> views;
    std::vector<YokeInput> contract_inputs;
    YokeMicroBatch contract;
  };
  std::vector<Micro> micros_;
  std::vector<const YokeMicroBatch*> pointers_;
  std::vector<int64_t> samples_;
  GlobalBatch global_;
  int64_t tokens_;
  YokeBatch batch_;
};

}  // namespace yoke
