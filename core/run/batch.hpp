// The inputs of one step on one data rank, in the structs of the contract.
#pragma once

#include <cstdint>
#include <vector>

#include "core/data/data_set.hpp"
#include "core/data/sample_assignment.hpp"
#include "core/verify/rank_report.hpp"
#include "yoke/model.hpp"

namespace yoke {

// Where samples are read from: a token stream, or the model family.
struct SampleSource {
  const DataSet& data;
  const Samples& own;  // used if `data` has no tokens
};

// Reads this data rank's share of one global batch. Owns the inputs of the micro-batches and the
// structs that point at them. Not copyable, because these structs point into the object.
class Batch {
 public:
  // Reads the global batch of `part` that starts at sample `start`. With a device, get() refers to
  // copies of the inputs there, made on the current stream. Throws
  // Error(INVALID_ARGUMENT) if a family's samples differ in roles, shapes or dtypes.
  Batch(const SampleSource& source,
        const SampleOrder& part,
        int64_t start,
        const SampleAssignment& assignment,
        at::Device device = at::kCPU);
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  const YokeBatch& get() const { return batch_; }
  int64_t tokens() const { return tokens_; }    // tokens of the global batch
  int64_t targets() const { return targets_; }  // targets of the global batch that count
  // Throws Error(INVALID_ARGUMENT) if no target of the global batch counts, because the loss of a
  // step is a mean over them.
  void require_targets() const;
  const GlobalBatch& global() const { return global_; }
  // Global numbers of this data rank's samples, in the order of the micro-batches.
  const std::vector<int64_t>& samples() const { return samples_; }
  size_t num_micros() const { return micros_.size(); }
  // Inputs of one micro-batch, in host memory.
  const TorchInputs& inputs(size_t micro) const { return micros_[micro].inputs; }

 private:
  struct Micro {
    TorchInputs inputs;             // inputs in host memory
    std::vector<TensorView> views;  // views of the inputs, or of their copies on the device
    std::vector<YokeInput> contract_inputs;
    YokeMicroBatch contract;
  };
  std::vector<Micro> micros_;
  std::vector<const YokeMicroBatch*> pointers_;
  std::vector<int64_t> samples_;
  GlobalBatch global_;
  int64_t tokens_;
  int64_t targets_ = 0;
  YokeBatch batch_;
};

}  // namespace yoke
