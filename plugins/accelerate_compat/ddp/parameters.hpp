// The parameters of a replica: every rank holds all of them, whole.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "yoke/torch.hpp"

namespace yoke::accelerate_compat {

struct Parameter {
  const YokeParameter* info;
  at::Tensor leaf;  // the model's, in the compute type; its memory is `memory`
  at::Tensor memory;
  at::Tensor master;  // what is updated and saved: `memory` itself, or fp32 where that is bf16
};

// Gives the leaves of a model memory and initial values, and takes it away at the end. One thread
// at a time.
class Parameters {
 public:
  // The model outlives this. Throws Error(FAILED_PRECONDITION) without the LibTorch model.
  Parameters(const YokeModel& model, at::ScalarType compute);
  ~Parameters();
  Parameters(const Parameters&) = delete;
  Parameters& operator=(const Parameters&) = delete;

  const std::vector<Parameter>& all() const { return all_; }
  const TorchModel& model() const { return *model_; }
  // After masters have changed: rounds them into the leaves. Nothing to do where they are the same.
  void publish() const;
  int64_t bytes() const;

 private:
  const TorchModel* model_;
  std::vector<Parameter> all_;
};

}  // namespace yoke::accelerate_compat
