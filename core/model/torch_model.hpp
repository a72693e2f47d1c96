// Turns a list of LibTorch blocks into a YokeModel: every callback of the neutral model, and the LibTorch
// extension. Knows nothing of any model family or backend.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "yoke/torch.hpp"

namespace yoke {

// Initial value of a parameter, one element from its row-major index; the same bits in every layout.
struct ParamInit {
  enum Kind { kUniform, kConstant } kind = kUniform;
  double value = 0.02;  // kUniform: standard deviation; kConstant: the value
};

// A model family's answer: the blocks in execution order, and how each parameter starts. Parameters are
// those of the blocks' modules, named "<prefix of the block>.<name in the module>"; a parameter that stands
// in two blocks (the same tensor) is tied and keeps its first name.
struct BlockList {
  std::vector<TorchBlock> blocks;
  std::vector<std::vector<std::pair<std::string, at::Tensor>>> params;  // per block: full name, leaf
  std::function<ParamInit(const std::string& name)> init;
  std::function<double(const TorchInputs& inputs)> loss_weight;
};

// Owns the blocks and the tables behind the contract structs. One per rank; one thread at a time.
class TorchModelHost {
 public:
  // decay_matrices: weight decay applies only to parameters of two or more dimensions.
  TorchModelHost(BlockList blocks, int32_t param_dtype, uint64_t seed, bool decay_matrices);
  ~TorchModelHost();
  const YokeModel& model() const;
  const YokeModelSummary& summary() const;
  // Unchains the LibTorch extension, for backends whose torch_tag is empty.
  void neutral_only();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace yoke
