// Elementwise reductions over buffers in memory of this process: plain loops, in rank order.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

namespace yoke {

// The buffers of all ranks. Each has at least `begin + count` elements of `dtype`.
struct ReduceBuffers {
  std::vector<const void*> sources;  // inputs, in rank order, which is the order of summation
  std::vector<void*> targets;        // outputs; each receives the same result, and may be a source
  at::ScalarType dtype;
  c10d::ReduceOp::RedOpType op;  // SUM, AVG, MAX or MIN
};

// Throws Error(INVALID_ARGUMENT) unless reduce() supports the dtype and the operation. The
// supported dtypes are fp64, fp32, bf16, fp16, int64, int32, uint8 and bool. Integers cannot be
// averaged; of bools there is only the maximum and the minimum.
void check_reducible(at::ScalarType dtype, c10d::ReduceOp::RedOpType op);

// Computes targets[k][i] = op over r of sources[r][i], for every k and for i in [begin, begin +
// count). bf16 and fp16 are accumulated in fp32 and rounded once. Any thread; calls for disjoint
// ranges may run at the same time.
void reduce(const ReduceBuffers& buffers, int64_t begin, int64_t count);

}  // namespace yoke
