// Products of small fp32 matrices on one thread of the CPU.
#pragma once

#include <ATen/core/TensorBase.h>

namespace yoke::ops {

// Returns whether multiply_small() can compute a b, and is faster than oneDNN and MKL if the
// vectors of the processor are wider than MKL assumes. a and b are fp32 matrices on the CPU. Once
// the calling thread has used many shapes, returns false for further shapes, because the thread
// keeps code for each.
bool is_small_product(const at::TensorBase& a, const at::TensorBase& b);

// Computes out = a b or, with `add`, out += a b, where is_small_product(a, b) has returned true on
// this thread. out is contiguous, has the right shape, and shares no memory with a or b.
void multiply_small(const at::TensorBase& a,
                    const at::TensorBase& b,
                    const at::TensorBase& out,
                    bool add);

}  // namespace yoke::ops
