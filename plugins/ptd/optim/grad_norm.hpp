// The norm of flat gradients, and the clip that follows from it.
//
// The contract's clip multiplies gradients by
//     scale = min(1, clip / (norm + 1e-6))          yoke_clip_scale() of yoke/optimizer.h
// LibTorch's fused AdamW divides gradients while it updates, so it is given
//     divisor = 1 / scale = max(1, (norm + 1e-6) / clip)
// The host knows the norm and computes the scale; clip_divisor() turns it into a divisor. Where the
// norm stays in device memory, clip_on_device() computes the divisor there.
//
// In fp16 runs the gradients contain the factor of the loss, YokeStepArgs.loss_scale. The norm
// above is that of the gradients without it, and the scale is divided by it as well.
#pragma once

#include <ATen/core/Tensor.h>

#include "plugins/ptd/state/shard_state.hpp"

namespace yoke::ptd {

// Returns the sum of squares of a flat tensor as an fp64 scalar on its device. NaN and infinity
// propagate.
at::Tensor squared_norm(const at::Tensor& grads);

// Returns this rank's share of the squared norm. Each logical parameter must count once. The ranks
// of tp hold the same gradients of tp-replicated parameters, so only the first one counts these; a
// parameter that two ranks of pp have is counted by the first one, too.
at::Tensor own_squared_norm(const ShardState& state, int tp_rank);

// A clip as scalars on the device of the gradients.
struct ClipTensors {
  at::Tensor divisor;  // fp64, at least the loss scale; undefined = 1
  at::Tensor skip;     // fp32: 1 if the norm is not finite, so that nothing is updated, else 0
};

// Returns the clip for a squared norm in device memory, without reading it on the host. squared:
// squared norm of the gradient over all ranks, with the factor of the loss. clip: bound of the norm
// without this factor, 0 = none. loss_scale: the factor, an fp64 scalar on the device; undefined =
// 1.
ClipTensors clip_on_device(const at::Tensor& squared,
                           double clip,
                           const at::Tensor& loss_scale = {});

// Returns 1 / scale as an fp64 scalar; undefined for scale = 1.
at::Tensor clip_divisor(double scale, at::Device device);

}  // namespace yoke::ptd
