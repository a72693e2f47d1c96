// The formulas are torchao's, so that torchao can be the oracle. The differences are deliberate:
// scales are powers of two in every recipe, because all layouts must round alike; the logarithm is
// computed in fp64, where it is exact near powers of two, so that every CPU finds the same scale.
//
// at::_scaled_mm is not used on the CPU: it has no scales by row there, and its results depend on
// whether the CPU has AMX.
#include "core/kernels/fp8.hpp"

#include <ATen/ATen.h>

#include <limits>

#include "core/kernels/product_meter.hpp"
#include "yoke/error.hpp"

namespace yoke::ops::fp8 {
namespace {

double largest(at::ScalarType type) {
  return type == at::kFloat8_e5m2 ? std::numeric_limits<at::Float8_e5m2>::max()
                                  : std::numeric_limits<at::Float8_e4m3fn>::max();
}

at::Tensor amax_of(const at::Tensor& matrix, Scaling scaling) {
  const at::Tensor sizes = matrix.abs();
  if (scaling == Scaling::kTensor) return sizes.max();
  return sizes.amax(scaling == Scaling::kRow ? 1 : 0, /*keepdim=*/true);
}

}  // namespace

const Recipe& recipe_of(Product product) {
  constexpr Rounding tensor{Scaling::kTensor}, row{Scaling::kRow}, column{Scaling::kColumn}, none{},
      wide{Scaling::kTensor, at::kFloat8_e5m2};
  // A scale may not vary along the dim that a product sums over.
  static constexpr Recipe tensorwise{tensor, tensor, wide, tensor, wide, tensor};
  static constexpr Recipe rowwise{row, row, row, column, column, column};
  static constexpr Recipe rowwise_gw_hp{row, row, row, tensor, none, none};
  switch (product) {
    case Product::kTensorwise:
      return tensorwise;
    case Product::kRowwise:
      return rowwise;
    case Product::kRowwiseGwHp:
      return rowwise_gw_hp;
    case Product::kPlain:
      break;
  }
  throw Error(YOKE_INTERNAL, "a plain product has no recipe");
}

at::Tensor scale_of(const at::Tensor& amax, at::ScalarType type) {
  const at::Tensor exact =
      amax.to(at::kDouble).clamp_min(1e-12).reciprocal().mul(largest(type)).to(at::kFloat);
  return exact.to(at::kDouble).log2().floor().exp2().to(at::kFloat);
}

at::Tensor cast(const at::Tensor& x, const at::Tensor& scale, at::ScalarType type) {
  const double limit = largest(type);
  return x.to(at::kFloat).mul(scale).clamp_(-limit, limit).to(type);
}

at::ScalarType product_type(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor scale_for(const at::Tensor& matrix, const Rounding& rounding) {
  return scale_of(amax_of(matrix, rounding.scaling), rounding.type);
}

at::Tensor rounded(const at::Tensor& matrix, const Rounding& rounding) {
  if (rounding.scaling == Scaling::kNone) return matrix;
  const at::ScalarType wide = product_type(matrix.scalar_type());
  if (matrix.numel() == 0) return matrix.to(wide);  // it has no largest element
  const at::Tensor scale = scale_for(matrix, rounding);
  const at::Tensor numbers = cast(matrix, scale, rounding.type);
  count_rounded(matrix, numbers);
  return numbers.to(wide).div_(scale.to(wide));
}

}  // namespace yoke::ops::fp8
