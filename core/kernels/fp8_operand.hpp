// Operands of fp8 products. On a CUDA device the matrices of a bf16 model are rounded to tensors of
// fp8 numbers, which the device multiplies. Everywhere else products are emulated: an operand holds
// the numbers after rounding, in the type of the product.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/kernels/fp8.hpp"

namespace yoke::ops::fp8 {

// A matrix [n, k] that is multiplied with another one along k.
struct Factor {
  // [n, k]: the numbers of an emulated product, or of a matrix that is not rounded. On a device
  // e4m3 or e5m2, contiguous, with zeros behind the k numbers up to a multiple of 16.
  at::Tensor numbers;
  // Factors of fp8 numbers in fp32, [1] or [n, 1]; undefined for others.
  at::Tensor unscale;

  bool is_fp8() const { return unscale.defined(); }
};

// What products along the rows of a matrix and products along its columns need.
struct Factors {
  Factor as_is, transposed;
};

// Rounds a matrix. NULL: there are no products along the rows, or along the columns.
Factors factors(const at::Tensor& matrix, const Rounding* as_is, const Rounding* transposed);

// A matrix [n, k] that is rounded, in 1 byte for each element and 4 for each scale. On a device it
// is stored like Factors::transposed.
struct Packed {
  at::Tensor numbers;  // fp8, [n, k]
  // What the numbers are multiplied by to undo their scales, in fp32: one element, [n, 1] or [1,
  // k].
  at::Tensor unscale;
};

// What products along the rows of a matrix need now, and what those along its columns need later.
struct Input {
  Factor as_is;
  Packed later;
};
// Rounds a matrix that is not empty for products along its rows and for those along its columns.
Input round_input(const at::Tensor& matrix, const Rounding& as_is, const Rounding& transposed);

// A weight, rounded for products along its rows and for those along its columns. On a device both
// are stored like the Factors of the weight.
struct RoundedWeight {
  Packed as_is, transposed;
};
// Rounds a weight that is not empty.
RoundedWeight round_weight(const at::Tensor& weight,
                           const Rounding& as_is,
                           const Rounding& transposed);

// Return the operand that factors() would return for the matrix of this type that one of the
// functions above has rounded.
Factor as_is(const Packed& packed, at::ScalarType type);
Factor transposed(const Packed& packed, at::ScalarType type);

// Returns a b^T in `type`. Both factors are fp8, or neither is. fast: a device may add with less
// precision than that of fp32.
at::Tensor product(const Factor& a, const Factor& b, at::ScalarType type, bool fast);

}  // namespace yoke::ops::fp8
