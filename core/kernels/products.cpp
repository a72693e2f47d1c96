#include "core/kernels/products.hpp"

#include <ATen/ATen.h>

#include <atomic>

#include "core/cuda/device_runtime.hpp"

namespace yoke::ops::fused {
namespace {

// The C library returns memory of this size to the system whenever it is freed, whatever its
// settings are. The system then clears each page before the memory is used again, which takes a
// tenth of the step of a small model with a large vocabulary.
constexpr int64_t kReturnedBytes = int64_t{32} << 20;

// Returns a tensor on the CPU in the memory of the last one, if nothing else uses that any more and
// the size is the same. Rejected: an allocator that does this for all tensors, because it would
// have to keep memory of many sizes.
at::Tensor empty_again(at::IntArrayRef sizes, const at::TensorOptions& options) {
  thread_local at::Storage last;
  const auto bytes =
      static_cast<size_t>(c10::multiply_integers(sizes)) * options.dtype().itemsize();
  if (last.use_count() == 1 && last.nbytes() == bytes) {
    // What another thread did before it released the memory has happened; use_count() is relaxed.
    std::atomic_thread_fence(std::memory_order_acquire);
    return at::empty({0}, options).set_(last, 0, sizes);
  }
  last = {};  // frees the memory before other memory is allocated, unless something else uses it
  const at::Tensor fresh = at::empty(sizes, options);
  last = fresh.storage();
  return fresh;
}

}  // namespace

at::Tensor empty_product(const std::vector<int64_t>& sizes, const at::TensorOptions& options) {
  constexpr int64_t kRow = 64, kNarrow = 512;  // elements
  const auto item = static_cast<int64_t>(options.dtype().itemsize());
  if (options.device().is_cpu() && c10::multiply_integers(sizes) * item >= kReturnedBytes)
    return empty_again(sizes, options);
  if (sizes.back() * item % 16 == 0 || sizes.back() < kNarrow || !runs_on(options.device()))
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
