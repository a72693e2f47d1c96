// Elementwise reductions over buffers of this process: plain loops, in rank order.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

namespace yoke {

// The buffers of all ranks, each at least `begin + count` elements of `dtype`.
struct ReduceBuffers {
  std::vector<const void*> sources;  // in rank order: the order of summation
  std::vector<void*> targets;        // each gets the result at the same indices; may be sources
  at::ScalarType dtype;
  c10d::ReduceOp::RedOpType op;  // SUM, AVG, MAX, MIN
};

// Throws Error(INVALID_ARGUMENT) for a dtype or an operation that reduce() does not know: dtypes
// fp64, fp32, bf16, fp16, int64, int32, uint8; no average of integers.
void check_reducible(at::ScalarType dtype, c10d::ReduceOp::RedOpType op);

// targets[k][i] = op over r of sources[r][i], i in [begin, begin + count). bf16 and fp16 are
// accumulated in fp32 and rounded once.
void reduce(const ReduceBuffers& buffers, int64_t begin, int64_t count);

}  // namespace yoke
