// The norm of flat gradients, and what is made of it.
#pragma once

#include <ATen/core/Tensor.h>

namespace yoke::ptd {

// Sum of squares; an fp64 scalar. NaN and infinity are passed on.
at::Tensor squared_norm(const at::Tensor& grads);

// What becomes of gradients, as scalars where they are: nobody has to wait for the norm.
struct ClipOnDevice {
  at::Tensor divisor;  // of the gradients, fp64, at least 1; undefined = 1
  at::Tensor skip;     // fp32: 1 = the norm is not finite and nothing is updated, else 0
};

// As clip_scale of the contract. squared: of the whole gradient; clip: its bound, 0 = none.
ClipOnDevice clip_on_device(const at::Tensor& squared, double clip);

}  // namespace yoke::ptd
