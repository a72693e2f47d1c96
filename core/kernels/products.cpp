#include "core/kernels/products.hpp"

#include <ATen/ATen.h>

#include "core/cuda/device_runtime.hpp"

namespace yoke::ops::fused {

at::Tensor empty_product(const std::vector<int64_t>& sizes, const at::TensorOptions& options) {
  constexpr int64_t kRow = 64, kNarrow = 512;  // elements
  const auto row_bytes = sizes.back() * static_cast<int64_t>(options.dtype().itemsize());
  if (row_bytes % 16 == 0 || sizes.back() < kNarrow || !runs_on(options.device()))
    return at::empty(sizes, options);
  std::vector<int64_t> strides(sizes.size(), 1);
  int64_t stride = (sizes.back() + kRow - 1) / kRow * kRow;
  for (size_t i = sizes.size() - 1; i-- > 0; stride *= sizes[i]) strides[i] = stride;
  return at::empty_strided(sizes, strides, options);
}

bool has_fast_products(at::ScalarType type) {
  if (type == at::kHalf) return false;
  if (type != at::kBFloat16) return true;
#if defined(__x86_64__)
  static const bool wide_vectors = __builtin_cpu_supports("avx512bw") &&
                                   __builtin_cpu_supports("avx512vl") &&
                                   __builtin_cpu_supports("avx512dq");
  return wide_vectors && at::globalContext().userEnabledMkldnn();
#else
  return false;
#endif
}

void multiply(at::Tensor out, const at::Tensor& a, const at::Tensor& b, const at::Tensor& add) {
  const bool is_bias = add.defined() && add.dim() == 1;
  if (runs_on(out.device()) && !is_bias) {
    cuda_runtime().multiply(out, a, b, add);
  } else if (out.is_cpu() && !has_fast_products(out.scalar_type())) {
    at::Tensor sum = at::mm(a.to(at::kFloat), b.to(at::kFloat));
    if (add.defined()) sum.add_(add);
    out.copy_(sum);
  } else if (add.defined()) {
    at::addmm_out(out, add, a, b);
  } else {
    at::mm_out(out, a, b);
  }
}

}  // namespace yoke::ops::fused
