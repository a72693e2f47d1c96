#include "plugins/deepspeed_stub/array.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

#include "plugins/deepspeed_stub/kernels/kernels.hpp"
#include "yoke/error.hpp"

namespace yoke::deepspeed_stub {
namespace {

constexpr size_t kAlignment = 64;

constexpr int64_t pair(int32_t from, int32_t to) {
  return int64_t{from} << 32 | to;
}

template <class T>
const T* in(const Span& s) {
  return static_cast<const T*>(s.data);
}
template <class T>
T* out(const Span& s) {
  return static_cast<T*>(s.data);
}

[[noreturn]] void unknown(const char* what, const Span& from, const Span& to) {
  throw Error(YOKE_INTERNAL,
              std::string(what) + " has no kernel for " + dtype_name(from.dtype) + " and " +
                  dtype_name(to.dtype));
}

void require_equal_counts(const char* what, const Span& a, const Span& b) {
  if (a.count == b.count) return;
  throw Error(YOKE_INTERNAL,
              std::string(what) + " of " + std::to_string(a.count) + " elements with " +
                  std::to_string(b.count));
}

}  // namespace

Array Array::to_be_written(int64_t count, int32_t dtype) {
  Array array;
  array.span_ = {nullptr, count, dtype};
  const size_t lines = (std::max<size_t>(array.bytes(), 1) + kAlignment - 1) / kAlignment;
  array.memory_.reset(std::aligned_alloc(kAlignment, lines * kAlignment));
  array.span_.data = array.memory_.get();
  if (array.empty()) throw std::bad_alloc();
  return array;
}

Array::Array(int64_t count, int32_t dtype) : Array(to_be_written(count, dtype)) {
  std::memset(span_.data, 0, bytes());
}

void Array::Free::operator()(void* p) const {
  std::free(p);
}

void copy(const Span& from, const Span& to) {
  require_equal_counts("copy", from, to);
  const int64_t n = from.count;
  if (from.dtype == to.dtype) {
    if (n > 0 && from.data != to.data) std::memcpy(to.data, from.data, from.bytes());
    return;
  }
  const Kernels& k = kernels();
  switch (pair(from.dtype, to.dtype)) {
    case pair(YOKE_F32, YOKE_BF16):
      return k.fp32_to_bf16(n, in<float>(from), out<BFloat16>(to));
    case pair(YOKE_BF16, YOKE_F32):
      return k.bf16_to_fp32(n, in<BFloat16>(from), out<float>(to));
    case pair(YOKE_F32, YOKE_F64):
      return k.fp32_to_fp64(n, in<float>(from), out<double>(to));
    default:
      unknown("copy", from, to);
  }
}

void add(const Span& x, const Span& sum) {
  require_equal_counts("sum", x, sum);
  const Kernels& k = kernels();
  switch (pair(x.dtype, sum.dtype)) {
    case pair(YOKE_F32, YOKE_F32):
      return k.add_fp32(x.count, in<float>(x), out<float>(sum));
    case pair(YOKE_F64, YOKE_F64):
      return k.add_fp64(x.count, in<double>(x), out<double>(sum));
    case pair(YOKE_BF16, YOKE_BF16):
      return k.add_bf16(x.count, in<BFloat16>(x), out<BFloat16>(sum));
    case pair(YOKE_BF16, YOKE_F32):
      return k.add_bf16_to_fp32(x.count, in<BFloat16>(x), out<float>(sum));
    default:
      unknown("sum", x, sum);
  }
}

double squared_norm(const Span& x) {
  const Kernels& k = kernels();
  switch (x.dtype) {
    case YOKE_F32:
      return k.squared_norm_fp32(x.count, in<float>(x));
    case YOKE_F64:
      return k.squared_norm_fp64(x.count, in<double>(x));
    case YOKE_BF16:
      return k.squared_norm_bf16(x.count, in<BFloat16>(x));
    default:
      unknown("norm", x, x);
  }
}

}  // namespace yoke::deepspeed_stub
