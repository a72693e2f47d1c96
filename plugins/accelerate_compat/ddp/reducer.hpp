// LibTorch's own c10d::Reducer over the leaves of a replica: averages their gradients, bucket by
// bucket, while the backward goes on.
#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "plugins/accelerate_compat/config/options.hpp"
#include "plugins/accelerate_compat/ddp/parameters.hpp"
#include "yoke/backend.hpp"

namespace yoke::accelerate_compat {

// One thread at a time; the thread that runs the backward.
class GradientReducer {
 public:
  // Collective over the world. The parameters outlive this; group: of the replicas.
  GradientReducer(const Parameters& parameters,
                  const DdpOptions& options,
                  c10d::ProcessGroup& group);
  ~GradientReducer();

  // Before and after the backward of a loss whose gradients shall be reduced; without them, they
  // are only accumulated. finish() throws Error(INVALID_ARGUMENT) if a parameter got no gradient.
  void start(const at::Tensor& loss);
  void finish();

 private:
  bool finds_unused_;
  std::shared_ptr<c10d::Reducer> reducer_;
};

}  // namespace yoke::accelerate_compat
