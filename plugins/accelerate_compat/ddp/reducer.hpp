// LibTorch's own c10d::Reducer over the leaves of a replica. It averages their gradients, bucket by
// bucket, while the backward continues.
#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "plugins/accelerate_compat/config/options.hpp"
#include "plugins/accelerate_compat/ddp/parameters.hpp"
#include "yoke/backend.hpp"

namespace yoke::accelerate_compat {

// May be used by one thread at a time, the one that runs the backward.
class GradientReducer {
 public:
  // group: process group of the replicas. It and the parameters must outlive the reducer.
  // Collective over the group.
  GradientReducer(const Parameters& parameters,
                  const DdpOptions& options,
                  c10d::ProcessGroup& group);
  ~GradientReducer();

  // To reduce the gradients of a loss, call start before its backward and finish after it. A
  // backward without these calls only accumulates gradients locally. finish throws
  // Error(INVALID_ARGUMENT) if a parameter got no gradient. The backward between them is
  // collective.
  void start(const at::Tensor& loss);
  void finish();

 private:
  bool finds_unused_;  // option find_unused_parameters
  std::shared_ptr<c10d::Reducer> reducer_;
};

}  // namespace yoke::accelerate_compat
