// Turns a list of LibTorch blocks into a YokeModel: every callback of the neutral model, and the
// LibTorch extension. Knows nothing of any model family or backend.
#pragma once

#include <cstdint>
#include <memory>

#include "yoke/model.hpp"

namespace yoke {

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
