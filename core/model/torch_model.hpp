// Turns a list of LibTorch blocks into a YokeModel: every callback of the neutral model, and the
// LibTorch extension. Knows nothing of any model family or backend.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "yoke/torch.hpp"

namespace yoke {

// Initial value of a parameter, one element from its row-major index; the same bits in every
// layout.
struct ParamInit {
  enum Kind { kUniform, kConstant } kind = kUniform;
  double value = 0.02;  // kUniform: standard deviation; kConstant: the value
};

// A model family's answer: the blocks in execution order, and how each parameter starts. A
// parameter that stands in two blocks (the same tensor) is tied and keeps its first name.
struct BlockList {
  std::vector<TorchBlock> blocks;
  std::vector<std::vector<std::pair<std::string, at::Tensor>>>
      params;  // per block: full name, leaf
  std::function<ParamInit(const std::string& name)> init;
  // Instead of init: dst[0, count) = elements [begin, begin + count) of a parameter, from files.
  // Set by a family that understands model.from, if that is given.
  std::function<void(const std::string& name, int64_t begin, int64_t count, float* dst)> stored;
  std::function<double(const TorchInputs& inputs)> loss_weight;
  // The last block without its loss: its carry [B, S, dim] to [B, S, vocab]. Empty = nothing to
  // sample.
  std::function<at::Tensor(const at::Tensor& carry)> logits;
};

// Appends a block and frees the memory of its parameters at once, so that a model may be larger
// than memory. The full name of a parameter is "<prefix>.<its name in the module>"; an empty prefix
// adds none.
void add_block(BlockList& list, TorchBlock block, const std::string& prefix);

// A contiguous tensor of this shape whose storage has no memory yet; what parameters start as.
at::Tensor unallocated(at::IntArrayRef shape, at::ScalarType dtype, at::Device device = at::kCPU);

// Owns the blocks and the tables behind the contract structs. One per rank; one thread at a time;
// lives at the same address from construction on. Every parameter becomes a leaf of param_dtype on
// `device` without memory: whoever runs a block binds memory first, by bind_param or, through the
// LibTorch extension, by swapping the data pointer of the leaf's one StorageImpl.
class TorchModelHost {
 public:
  // decay_matrices: weight decay applies only to parameters of two or more dimensions.
  // Throws Error(INVALID_ARGUMENT) for an empty list, a block without forward or two parameters of
  // one name.
  TorchModelHost(BlockList blocks,
                 int32_t param_dtype,
                 uint64_t seed,
                 bool decay_matrices,
                 at::Device device = at::kCPU);
  ~TorchModelHost();
  TorchModelHost(const TorchModelHost&) = delete;
  TorchModelHost& operator=(const TorchModelHost&) = delete;

  const YokeModel& model() const;
  const YokeModelSummary& summary() const;
  // Unchains the LibTorch extension, for backends whose torch_tag is not the host's.
  void neutral_only();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace yoke
