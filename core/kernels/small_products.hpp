// Products of small fp32 matrices on one thread of the CPU.
#pragma once

#include <ATen/core/TensorBase.h>

namespace yoke::ops {

// Returns whether multiply_small() can compute a b, and is expected to be faster than MKL without
// AVX-512 and than oneDNN's own product. a [m, k] and b [k, n] are fp32 matrices on the CPU. Counts
// the shape: once it has returned true for 256 shapes on a thread, it returns false there for all
// others, because LibTorch keeps code for each shape and thread.
bool is_small_product(const at::TensorBase& a, const at::TensorBase& b);

// Computes out = a b or, with `add`, out += a b, where is_small_product(a, b) has returned true on
// this thread. out is contiguous, has the right shape, and shares no memory with a or b.
void multiply_small(const at::TensorBase& a,
                    const at::TensorBase& b,
                    const at::TensorBase& out,
                    bool add);

}  // namespace yoke::ops
