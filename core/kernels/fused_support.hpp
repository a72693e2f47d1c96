// Helpers for the files that implement core/kernels/fused_ops.hpp: dispatch by dtype, and the split
// of rows between threads.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "core/kernels/cpu_kernels.hpp"
#include "core/kernels/fused_ops.hpp"
#include "core/kernels/parallel.hpp"

namespace yoke::ops::fused {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Calls f with a null pointer to the C++ type of the elements.
template <class F>
auto dispatch(at::ScalarType type, F&& f) {
  switch (type) {
    case at::kDouble:
      return f(static_cast<double*>(nullptr));
    case at::kBFloat16:
      return f(static_cast<BFloat16*>(nullptr));
    case at::kHalf:
      return f(static_cast<Float16*>(nullptr));
    default:
      return f(static_cast<float*>(nullptr));
  }
}

template <class T>
T* ptr(const at::Tensor& t) {
  return static_cast<T*>(t.data_ptr());
}
template <class T>
const T* cptr(const at::Tensor& t) {
  return static_cast<const T*>(t.const_data_ptr());
}

// kGrain is the smallest number of elements that is worth a thread of its own. grain_of() returns
// how many rows have that many elements; `row` is the number of elements of one row.
inline constexpr int64_t kGrain = 16384;
inline int64_t grain_of(int64_t row) {
  return std::max<int64_t>(1, kGrain / row);
}

// A division of rows into at most kParts parts. The bounds do not depend on the number of threads,
// so that a sum over the parts has the same bits with any number of threads.
struct Parts {
  static constexpr int64_t kParts = 32;
  // rows: number of rows; row: elements of one row.
  Parts(int64_t rows, int64_t row)
      : total(rows), size(std::max(grain_of(row), (rows + kParts - 1) / kParts)) {}
  int64_t count() const { return (total + size - 1) / size; }
  // Calls f(part, first row, number of rows) for each part, on several threads.
  template <class F>
  void each(F&& f) const {
    parallel_for(count(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) {
        f(part, part * size, std::min(size, total - part * size));
      }
    });
  }
  int64_t total, size;  // number of rows, and rows per part
};

// The type of computations: fp64 for fp64, otherwise fp32.
inline at::ScalarType wide_type(const at::Tensor& t) {
  return t.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace yoke::ops::fused
