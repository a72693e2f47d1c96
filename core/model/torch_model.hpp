// Turns a list of LibTorch blocks into a YokeModel: the callbacks of the neutral model, and the
// LibTorch extension. Independent of any model family and backend.
#pragma once

#include <cstdint>
#include <memory>

#include "yoke/model.hpp"

namespace yoke {

// Owns the blocks and the data to which the contract's structs point. One per rank; one thread at a
// time. It must not be moved, because the structs point into it.
//
// Every parameter becomes a leaf of param_dtype on `device` without memory. A backend must bind
// memory before it runs a block: with bind_param or, through the LibTorch extension, by exchanging
// the data pointer of the leaf's StorageImpl.
class TorchModelHost {
 public:
  // decay_matrices: weight decay applies only to parameters of two or more dims. Throws
  // Error(INVALID_ARGUMENT) for an empty list, a list without init or loss_weight, a hint that does
  // not fit, or two parameters with the same name.
  TorchModelHost(BlockList blocks,
                 int32_t param_dtype,
                 uint64_t seed,
                 bool decay_matrices,
                 at::Device device = at::kCPU);
  ~TorchModelHost();
  TorchModelHost(const TorchModelHost&) = delete;
  TorchModelHost& operator=(const TorchModelHost&) = delete;

  // These return structs that are owned by the host.
  const YokeModel& model() const;
  const YokeModelSummary& summary() const;
  // Removes the LibTorch extension from model(), for a backend that was built with another
  // LibTorch.
  void neutral_only();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace yoke
