// A product of small matrices takes only microseconds, of which oneDNN's primitive for products
// spends many on its preparation, with about 60 allocations in each call. Its kernel for one block
// ("brgemm"), which LibTorch exports, has no such overhead: LibTorch generates code for each shape
// once per thread, and a call costs 0.1 us. bench/products --each prints the rates. On an AMD Zen
// 4, whose fp32 peak is 118 GFLOP/s at 3.7 GHz, the products of a model of dimension 64 reach 81 to
// 112 GFLOP/s, and with --libtorch 62 to 96.
//
// The kernel takes matrices whose rows are contiguous, so others are transposed first, and it does
// not divide large matrices into blocks that fit into the caches; oneDNN's primitive is better for
// those.
//
// Each number of the result is one sum, added up in the order of the inner dimension whatever the
// shapes are. So a row does not depend on how many rows there are, unless their number moves the
// product to another library.
#include "core/kernels/small_products.hpp"

#include <ATen/Context.h>
#include <ATen/native/CPUBlas.h>

#include <algorithm>
#include <array>
#include <set>
#include <vector>

namespace fbgemm {

// Copies a matrix of `rows` rows to its transpose. The strides are those between rows. LibTorch
// contains this function. Its address is null if a LibTorch does not export it; for that the symbol
// must not be hidden, as our own symbols are.
template <typename T>
void transpose_simd(
    int64_t rows, int64_t columns, const T* from, int64_t from_stride, T* to, int64_t to_stride);
template <>
[[gnu::weak, gnu::visibility("default")]] void transpose_simd<float>(int64_t rows,
                                                                     int64_t columns,
                                                                     const float* from,
                                                                     int64_t from_stride,
                                                                     float* to,
                                                                     int64_t to_stride);

}  // namespace fbgemm

namespace yoke::ops {
namespace {

// A matrix whose rows are contiguous, `stride` numbers apart.
template <typename T>
struct Rows {
  T* data;
  int64_t stride;
};

bool has_contiguous_rows(const at::TensorBase& t) {
  return t.stride(1) == 1 && t.stride(0) >= t.size(1);
}

bool has_contiguous_columns(const at::TensorBase& t) {
  return t.stride(0) == 1 && t.stride(1) >= t.size(0);
}

// Returns the rows of t, or of its transpose if its columns are contiguous.
Rows<const float> rows_of(const at::TensorBase& t) {
  return {t.const_data_ptr<float>(), has_contiguous_rows(t) ? t.stride(0) : t.stride(1)};
}

// Returns memory for `count` numbers, which the next call on this thread takes back.
float* scratch(int64_t count) {
  thread_local std::vector<float> memory;
  if (memory.size() < static_cast<size_t>(count)) memory.resize(static_cast<size_t>(count));
  return memory.data();
}

// The dimensions of a product of a matrix [m, k] and a matrix [k, n].
struct Shape {
  int64_t m, n, k;
};

// Computes out = a b, or out += a b.
void multiply_rows(
    const Shape& s, Rows<const float> a, Rows<const float> b, Rows<float> out, bool add) {
  at::native::cpublas::brgemm(s.m,
                              s.n,
                              s.k,
                              a.stride,
                              b.stride,
                              out.stride,
                              add,
                              a.data,
                              b.data,
                              out.data,
                              /*is_vnni=*/false);
}

// The same with b stored as its transpose [n, k]: y = x W^T. It is transposed in blocks of 64 of
// its rows, 256 k bytes each, which stay in the second-level cache.
void multiply_by_transpose(
    const Shape& s, Rows<const float> a, Rows<const float> b, Rows<float> out, bool add) {
  constexpr int64_t kBlock = 64;
  float* const block = scratch(s.k * kBlock);
  for (int64_t n = 0; n < s.n; n += kBlock) {
    const int64_t width = std::min(kBlock, s.n - n);
    fbgemm::transpose_simd<float>(width, s.k, b.data + n * b.stride, b.stride, block, width);
    multiply_rows({s.m, width, s.k}, a, {block, width}, {out.data + n, out.stride}, add);
  }
}

// The same with a stored as its transpose [k, m]: dW = dy^T x. If a is wider than b, transposing b
// and the result moves fewer numbers: out^T = b^T a.
void multiply_transpose_by(
    const Shape& s, Rows<const float> a, Rows<const float> b, Rows<float> out, bool add) {
  if (s.m <= s.n) {
    float* const a_rows = scratch(s.m * s.k);
    fbgemm::transpose_simd<float>(s.k, s.m, a.data, a.stride, a_rows, s.k);
    multiply_rows(s, {a_rows, s.k}, b, out, add);
    return;
  }
  float* const b_columns = scratch(s.n * s.k + s.n * s.m);
  float* const out_columns = b_columns + s.n * s.k;
  fbgemm::transpose_simd<float>(s.k, s.n, b.data, b.stride, b_columns, s.k);
  if (add) fbgemm::transpose_simd<float>(s.m, s.n, out.data, out.stride, out_columns, s.m);
  multiply_rows({s.n, s.m, s.k}, {b_columns, s.k}, a, {out_columns, s.m}, add);
  fbgemm::transpose_simd<float>(s.n, s.m, out_columns, s.m, out.data, out.stride);
}

// LibTorch keeps the code for each shape as long as the thread lives. A mixture of experts, for
// example, has ever new shapes.
bool may_have_code(const Shape& s) {
  constexpr size_t kMost = 256;
  thread_local std::set<std::array<int64_t, 3>> shapes;
  const std::array<int64_t, 3> shape{s.m, s.n, s.k};
  return shapes.contains(shape) || (shapes.size() < kMost && shapes.insert(shape).second);
}

}  // namespace

bool is_small_product(const at::TensorBase& a, const at::TensorBase& b) {
  // Transposing costs too much if the product uses each number only a few times.
  constexpr int64_t kLeast = 8, kMost = 1024;
  constexpr int64_t kMostMultiplications = int64_t{1} << 26;
  const Shape s{a.size(0), b.size(1), a.size(1)};
  const auto [least, most] = std::minmax({s.m, s.n, s.k});
  if (least < kLeast || most > kMost || s.m * s.n * s.k > kMostMultiplications) return false;
  const bool a_rows = has_contiguous_rows(a), b_rows = has_contiguous_rows(b);
  return (a_rows || (b_rows && has_contiguous_columns(a))) &&
         (b_rows || has_contiguous_columns(b)) && &fbgemm::transpose_simd<float> != nullptr &&
         may_have_code(s);
}

void multiply_small(const at::TensorBase& a,
                    const at::TensorBase& b,
                    const at::TensorBase& out,
                    bool add) {
  const Shape s{a.size(0), b.size(1), a.size(1)};
  const auto multiply = !has_contiguous_rows(a)   ? multiply_transpose_by
                        : !has_contiguous_rows(b) ? multiply_by_transpose
                                                  : multiply_rows;
  multiply(s, rows_of(a), rows_of(b), {out.mutable_data_ptr<float>(), s.n}, add);
}

}  // namespace yoke::ops
