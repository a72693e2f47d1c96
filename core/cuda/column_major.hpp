// Matrices as cuBLASLt describes them: column-major, with a distance between columns, and perhaps
// transposed. A row-major matrix is the transpose of a column-major one, so the product out = a b +
// add is computed as out^T = b^T a^T + add^T. Here is the part of this that needs no device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <compare>

namespace yoke {

struct ColumnMajor {
  int64_t rows, columns;
  int64_t stride;   // elements from one column to the next, at least `rows`
  bool transposed;  // the operand is the transpose of this matrix

  auto operator<=>(const ColumnMajor&) const = default;
};

// Returns the transpose of a row-major operand. Throws std::exception if neither the rows nor the
// columns are contiguous, or if they overlap.
inline ColumnMajor transpose_of(const at::Tensor& m) {
  const int64_t rows = m.size(0), columns = m.size(1);
  // The stride of a dim of size 1 means nothing.
  if (m.stride(1) == 1 || columns == 1) {
    const int64_t stride = rows == 1 ? columns : m.stride(0);
    TORCH_CHECK(stride >= columns, "multiply: the rows of a matrix overlap");
    return {columns, rows, stride, false};
  }
  TORCH_CHECK(m.stride(0) == 1 || rows == 1, "multiply: neither rows nor columns are contiguous");
  const int64_t stride = m.stride(1);
  TORCH_CHECK(stride >= rows, "multiply: the columns of a matrix overlap");
  return {rows, columns, stride, true};
}

// The arguments of a product in cuBLASLt's order and form. `add` is that of `out` if nothing is
// added.
struct ColumnMajorProduct {
  ColumnMajor first, second, add, out;  // b^T, a^T, add^T, out^T

  auto operator<=>(const ColumnMajorProduct&) const = default;
};

// Throws std::exception if DeviceRuntime::multiply() does not take the tensors.
inline ColumnMajorProduct column_major_product(const at::Tensor& out,
                                               const at::Tensor& a,
                                               const at::Tensor& b,
                                               const at::Tensor& add) {
  const at::ScalarType type = a.scalar_type(), to = out.scalar_type();
  TORCH_CHECK(b.scalar_type() == type && a.size(1) == b.size(0), "multiply: a and b do not match");
  TORCH_CHECK(
      to == type || (to == at::kFloat && a.element_size() == 2), "multiply: ", type, " into ", to);
  TORCH_CHECK(out.size(0) == a.size(0) && out.size(1) == b.size(1), "multiply: size of the result");
  TORCH_CHECK(!add.defined() || (add.scalar_type() == to && add.sizes() == out.sizes()),
              "multiply: the matrix that is added is not like the result");
  const ColumnMajor result = transpose_of(out);
  const ColumnMajorProduct product{
      transpose_of(b), transpose_of(a), add.defined() ? transpose_of(add) : result, result};
  TORCH_CHECK(!product.out.transposed && !product.add.transposed,
              "multiply: the rows of a result are not contiguous");
  return product;
}

}  // namespace yoke
