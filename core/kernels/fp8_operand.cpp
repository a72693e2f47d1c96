// A device multiplies fp8 matrices only along the rows of both, which is why factors are defined in
// that form and why gradients need transposed matrices. Both forms of a matrix are written in one
// pass over it.
#include "core/kernels/fp8_operand.hpp"

#include <ATen/ATen.h>

#include "core/cuda/device_runtime.hpp"
#include "core/kernels/product_meter.hpp"

namespace yoke::ops::fp8 {
namespace {

constexpr int64_t kMultiple = 16;  // products on a device sum over a multiple of this

// Returns whether a device multiplies matrices of this type. Distributed tensors, which have no
// storage, are emulated.
bool is_on_device(const at::Tensor& matrix, at::ScalarType type) {
  return matrix.is_cuda() && matrix.has_storage() && type == at::kBFloat16;
}
bool is_on_device(const at::Tensor& matrix) {
  return is_on_device(matrix, matrix.scalar_type());
}

bool rounds(const Rounding* rounding) {
  return rounding != nullptr && rounding->scaling != Scaling::kNone;
}

Factors emulated(const at::Tensor& matrix, const Rounding* as_is, const Rounding* transposed) {
  Factors out;
  if (as_is != nullptr) out.as_is.numbers = rounded(matrix, *as_is);
  if (transposed == nullptr) return out;
  const bool same = as_is != nullptr && *as_is == *transposed;
  out.transposed.numbers = (same ? out.as_is.numbers : rounded(matrix, *transposed)).t();
  return out;
}

// Allocates the result for `lines` lines of `length` numbers.
Fp8Matrix make_result(const at::Tensor& matrix,
                      const Rounding& rounding,
                      int64_t lines,
                      int64_t length) {
  const int64_t padded = (length + kMultiple - 1) / kMultiple * kMultiple;
  const at::Tensor unscale = rounding.scaling == Scaling::kTensor
                                 ? at::empty({1}, matrix.options().dtype(at::kFloat))
                                 : at::empty({lines, 1}, matrix.options().dtype(at::kFloat));
  return {at::empty({lines, padded}, matrix.options().dtype(rounding.type)), unscale};
}

// Returns a matrix with the same elements that a device can read 16 bytes at a time: contiguous,
// and at an address that is a multiple of 16. Only a part of a larger tensor has another address.
at::Tensor aligned(const at::Tensor& matrix) {
  const at::Tensor rows = matrix.contiguous();
  return reinterpret_cast<uintptr_t>(rows.const_data_ptr()) % 16 == 0 ? rows : rows.clone();
}

Factors on_device(const at::Tensor& given, const Rounding* as_is, const Rounding* transposed) {
  const at::Tensor matrix = aligned(given);
  const int64_t rows = matrix.size(0), columns = matrix.size(1);
  Fp8Matrix along_rows, along_columns;
  if (rounds(as_is)) along_rows = make_result(matrix, *as_is, rows, columns);
  if (rounds(transposed)) along_columns = make_result(matrix, *transposed, columns, rows);
  const bool same = rounds(as_is) && rounds(transposed) && *as_is == *transposed;
  if (same) along_columns.unscale = along_rows.unscale;
  cuda_runtime().round_to_fp8(
      matrix, rounds(as_is) ? &along_rows : nullptr, rounds(transposed) ? &along_columns : nullptr);
  Factors out{{along_rows.numbers, along_rows.unscale},
              {along_columns.numbers, along_columns.unscale}};
  if (rounds(as_is)) count_rounded(matrix, along_rows.numbers);
  if (rounds(transposed) && !same) count_rounded(matrix, along_columns.numbers);
  if (as_is != nullptr && !rounds(as_is)) out.as_is.numbers = matrix;
  if (transposed != nullptr && !rounds(transposed)) out.transposed.numbers = matrix.t();
  return out;
}

Packed pack(const at::Tensor& matrix, const Rounding& rounding) {
  const at::Tensor scale = scale_for(matrix, rounding);
  const at::Tensor numbers = cast(matrix, scale, rounding.type);
  count_rounded(matrix, numbers);
  return {numbers, scale.reciprocal()};
}

// Returns the numbers that a packed matrix represents. Every type that was packed has them exactly.
at::Tensor unpacked(const Packed& packed, at::ScalarType type) {
  return packed.numbers.to(type).mul_(packed.unscale.to(type));
}

}  // namespace

Factors factors(const at::Tensor& matrix, const Rounding* as_is, const Rounding* transposed) {
  const RoundingTimer timer;
  const bool native = is_on_device(matrix) && (rounds(as_is) || rounds(transposed));
  return native ? on_device(matrix, as_is, transposed) : emulated(matrix, as_is, transposed);
}

// A device makes both layouts in one pass over the matrix. Elsewhere, numbers that both products
// use are rounded once.
Input round_input(const at::Tensor& matrix, const Rounding& as_is, const Rounding& transposed) {
  if (is_on_device(matrix)) {
    const Factors both = factors(matrix, &as_is, &transposed);
    return {both.as_is, {both.transposed.numbers, both.transposed.unscale}};
  }
  const RoundingTimer timer;
  const Packed packed = pack(matrix, transposed);
  if (as_is == transposed)
    return {{unpacked(packed, product_type(matrix.scalar_type())), {}}, packed};
  return {factors(matrix, &as_is, nullptr).as_is, packed};
}

RoundedWeight round_weight(const at::Tensor& weight,
                           const Rounding& as_is,
                           const Rounding& transposed) {
  if (is_on_device(weight)) {
    const Factors both = factors(weight, &as_is, &transposed);
    return {{both.as_is.numbers, both.as_is.unscale},
            {both.transposed.numbers, both.transposed.unscale}};
  }
  const RoundingTimer timer;
  const Packed rows = pack(weight, as_is);
  return {rows, as_is == transposed ? rows : pack(weight, transposed)};
}

Factor as_is(const Packed& packed, at::ScalarType type) {
  if (is_on_device(packed.numbers, type)) return {packed.numbers, packed.unscale};
  const RoundingTimer timer;
  return {unpacked(packed, product_type(type)), {}};
}

Factor transposed(const Packed& packed, at::ScalarType type) {
  if (is_on_device(packed.numbers, type)) return {packed.numbers, packed.unscale};
  const RoundingTimer timer;
  return {unpacked(packed, product_type(type)).t(), {}};
}

at::Tensor product(const Factor& a, const Factor& b, at::ScalarType type, bool fast) {
  if (!a.is_fp8()) return at::mm(a.numbers, b.numbers.t()).to(type);
  const int64_t rows = a.numbers.size(0), columns = b.numbers.size(0);
  if (rows == 0 || a.numbers.size(1) == 0)
    return at::zeros({rows, columns}, a.unscale.options().dtype(type));
  // Either both factors have one scale or both have one for each line.
  const bool per_line = a.unscale.dim() == 2 || b.unscale.dim() == 2;
  const auto for_lines = [&](const Factor& f) {
    return per_line ? f.unscale.expand({f.numbers.size(0), 1}).contiguous() : f.unscale;
  };
  return at::_scaled_mm(a.numbers,
                        b.numbers.t(),
                        for_lines(a),
                        for_lines(b).t(),
                        /*bias=*/{},
                        /*scale_result=*/{},
                        type,
                        fast);
}

}  // namespace yoke::ops::fp8
