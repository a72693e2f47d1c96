// Services of the host for backends that run LibTorch on a CUDA device: graphs, and kernels. For
// backends with the host's tag only (yoke/torch.hpp), because they exchange LibTorch objects.
#pragma once

#include <memory>

#include "yoke/torch.hpp"

namespace yoke {

// ---- Device graphs ----

// A CUDA graph: work that was issued on the current stream and recorded, and that can be replayed
// on the same memory. All calls are made by one thread.
class DeviceGraph {
 public:
  // Abandons a recording that has not ended.
  virtual ~DeviceGraph() = default;
  // Starts recording. Until end(), the work that this thread issues on the stream is recorded and
  // not executed. No thread may synchronise with the device during that time.
  virtual void begin() = 0;
  // Ends the recording; afterwards replay() may be called any number of times.
  virtual void end() = 0;
  // Issues the recorded work on the stream. Returns before the work is done.
  virtual void replay() = 0;
};

// The service "yoke.torch_graphs/1" of hosts whose device supports graphs. Only for backends with
// the host's tag, because the result of make is a C++ object.
struct TorchGraphs {
  YokeHeader header;  // any id
  void* ctx;
  // Creates a graph. Throws std::exception.
  std::unique_ptr<DeviceGraph> (*make)(void* ctx);
  // Timeout of the collectives inside a replay, which the host cannot monitor. If a replay takes
  // this many seconds longer than its work needs, a peer is lost.
  double timeout_seconds;
};

// ---- Device kernels ----

// The arguments of one step of AdamW or a variant. The flat tensors have the same number of
// elements. An undefined tensor is an argument that is not given.
inline constexpr int64_t kAdamWCoefficients = 9;  // numbers in AdamWCoefficients
struct AdamWTensors {
  at::Tensor params, exp_avg, exp_avg_sq;  // updated in place
  at::Tensor grads;
  at::Tensor copy;          // gets the new parameters, in the type in which the model computes
  at::Tensor coefficients;  // [9]: the members of AdamWCoefficients of yoke/adamw_element.hpp
  at::Tensor divisor;       // fp64 scalar: divides the gradients
  at::Tensor skip;          // fp32 scalar: if it is not 0, nothing is updated
};
// Returns whether a device has a kernel for parameters, gradients and a copy of these types. The
// moments and the coefficients have the type of the parameters. Without a copy, pass the type of
// the gradients.
inline bool takes_adamw(at::ScalarType params, at::ScalarType grads, at::ScalarType copy) {
  const auto is_narrow = [](at::ScalarType t) { return t == at::kHalf || t == at::kBFloat16; };
  if (params != at::kFloat) return params == at::kDouble && grads == params && copy == params;
  return copy == grads ? grads == at::kFloat || is_narrow(grads)
                       : grads == at::kFloat && is_narrow(copy);
}

// The service "yoke.torch_kernels/1" of hosts with a device, for backends with the host's tag.
struct TorchKernels {
  YokeHeader header;  // any id
  void* ctx;
  // Queues one step on the current stream, in one pass over memory. Nothing is read on the host.
  void (*adamw)(void* ctx, const AdamWTensors& tensors);
};

}  // namespace yoke
