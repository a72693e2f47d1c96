// Matrix products whose operands are rounded to 8-bit floating-point numbers (fp8), emulated on the
// CPU: each operand is scaled, cast to e4m3 or e5m2 and converted back, and the product of these
// numbers is computed in fp64 for fp64 tensors and in fp32 for all others.
//
// A scale is a power of two, so scaling is exact, and the rounding of a normal number does not
// depend on what else shares its scale. No function here reads the value of a tensor on the CPU, so
// none waits for a device.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "core/kernels/ops.hpp"

namespace yoke::ops::fp8 {

// Which elements of a matrix share a scale. kNone: the matrix is not rounded.
enum class Scaling : uint8_t { kNone, kTensor, kRow, kColumn };

// How an operand is rounded.
struct Rounding {
  Scaling scaling = Scaling::kNone;
  at::ScalarType type = at::kFloat8_e4m3fn;
  bool operator==(const Rounding&) const = default;
};

// How the operands of the three products of a linear layer are rounded. x is [tokens, in], the
// weight [out, in] and dy [tokens, out].
struct Recipe {
  Rounding x, weight;            // y = x weight^T
  Rounding dy, weight_for_dx;    // dx = dy weight
  Rounding dy_for_dw, x_for_dw;  // dweight = dy^T x
};
const Recipe& recipe_of(Product product);  // every product but kPlain has one

// Returns the factor, in fp32, by which numbers up to `amax` in absolute value are multiplied
// before they are cast to `type`: the largest power of two with which none of them exceeds the
// range. For amax below 1e-12 it is that of 1e-12; for amax = infinity it is 0, and for NaN it is
// NaN.
at::Tensor scale_of(const at::Tensor& amax, at::ScalarType type);
// Returns x * scale in `type`, clamped to the range of the type; LibTorch 2.11's own cast makes NaN
// or infinity of numbers beyond it.
at::Tensor cast(const at::Tensor& x, const at::Tensor& scale, at::ScalarType type);
// Returns the type in which products of matrices of a type are emulated.
at::ScalarType product_type(at::ScalarType type);
// Returns the scale of a matrix that is rounded, in fp32: one element, or one for each row or
// column.
at::Tensor scale_for(const at::Tensor& matrix, const Rounding& rounding);
// Returns the numbers that a rounded operand represents, in the type of the product. All elements
// that share a scale with NaN or infinity become NaN.
at::Tensor rounded(const at::Tensor& matrix, const Rounding& rounding);

// Implements ops::linears() for a product other than kPlain. Uses ATen operators only, so the
// tensors may be distributed.
std::vector<at::Tensor> linears(const at::Tensor& x,
                                const std::vector<at::Tensor>& weights,
                                Product product);

}  // namespace yoke::ops::fp8
