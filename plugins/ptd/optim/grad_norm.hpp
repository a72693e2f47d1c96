// The squared 2-norm of a flat gradient, in fp64 whatever the gradient's type.
#pragma once

#include <ATen/core/Tensor.h>

namespace yoke::ptd {

// grads [n], compact; a scalar fp64 tensor on the same device.
at::Tensor squared_norm(const at::Tensor& grads);

}  // namespace yoke::ptd
