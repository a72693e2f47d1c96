// The parameters of a replica. Every rank has all of them, unsharded.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "yoke/torch.hpp"

namespace yoke::accelerate_compat {

// All three tensors have the shape of the parameter.
struct Parameter {
  const YokeParameter* info;
  at::Tensor leaf;    // the model's leaf; its storage points to `memory`
  at::Tensor memory;  // values in the dtype in which the model computes
  at::Tensor
      master;  // values to update and save: fp32 if `memory` has 16 bits, else `memory` itself
};

// Binds the leaves of a model to memory with initial values. The destructor unbinds them and drops
// their gradients. One thread at a time.
class Parameters {
 public:
  // compute: dtype in which the model computes. The model must outlive the parameters. Throws
  // Error(FAILED_PRECONDITION) if the host has not attached the model as LibTorch objects.
  Parameters(const YokeModel& model, at::ScalarType compute);
  ~Parameters();
  Parameters(const Parameters&) = delete;
  Parameters& operator=(const Parameters&) = delete;

  const std::vector<Parameter>& all() const { return all_; }
  const TorchModel& model() const { return *model_; }
  // Copies the masters, rounded, to the leaves. Must be called when the masters have changed. Has
  // no effect where master and leaf share their memory.
  void publish() const;
  int64_t bytes() const;  // bytes of leaves and masters

 private:
  const TorchModel* model_;
  std::vector<Parameter> all_;
};

}  // namespace yoke::accelerate_compat
