// The reduction runs over tiles of kTile elements, and within a tile over the ranks. The
// accumulators of a tile stay in the cache, and each source is read exactly once. The order of
// summation is the rank order for every element, so results do not depend on how a range is split
// between threads.
#include "core/comm/local_reduce.hpp"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <array>

#include "core/comm/signature.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using RedOp = c10d::ReduceOp::RedOpType;

constexpr int64_t kTile = 1024;  // elements; the accumulators fit the first-level cache

// The type in which elements of type T are added up.
template <class T>
struct Accumulator {
  using type = T;
};
template <>
struct Accumulator<c10::BFloat16> {
  using type = float;
};
template <>
struct Accumulator<c10::Half> {
  using type = float;
};

struct Add {
  template <class A>
  A operator()(A a, A b) const {
    return a + b;
  }
};
// If either operand is NaN, so is the result, as with at::maximum and at::minimum.
struct Max {
  template <class A>
  A operator()(A a, A b) const {
    return (b > a || b != b) ? b : a;
  }
};
struct Min {
  template <class A>
  A operator()(A a, A b) const {
    return (b < a || b != b) ? b : a;
  }
};

// The accumulators start with the first source and not with a neutral element, because 0 + x turns
// -0 into +0.
template <class T, class Op>
void reduce_tiles(const ReduceBuffers& buffers, int64_t begin, int64_t count, Op op) {
  using A = typename Accumulator<T>::type;
  std::array<A, kTile> acc;
  for (int64_t at = begin; at < begin + count; at += kTile) {
    const int64_t n = std::min(kTile, begin + count - at);
    const auto source = [&](size_t r) { return static_cast<const T*>(buffers.sources[r]) + at; };
    const T *first = source(0), *second = buffers.sources.size() > 1 ? source(1) : nullptr;
    for (int64_t i = 0; i < n; ++i) {
      const A value = static_cast<A>(first[i]);
      acc[i] = second == nullptr ? value : op(value, static_cast<A>(second[i]));
    }
    for (size_t r = 2; r < buffers.sources.size(); ++r) {
      const T* next = source(r);
      for (int64_t i = 0; i < n; ++i) acc[i] = op(acc[i], static_cast<A>(next[i]));
    }
    if (buffers.op == RedOp::AVG) {
      const A divisor = static_cast<A>(buffers.sources.size());
      for (int64_t i = 0; i < n; ++i) acc[i] /= divisor;
    }
    for (void* target : buffers.targets) {
      T* out = static_cast<T*>(target) + at;
      for (int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(acc[i]);
    }
  }
}

template <class T>
void reduce_as(const ReduceBuffers& buffers, int64_t begin, int64_t count) {
  switch (buffers.op) {
    case RedOp::MAX:
      return reduce_tiles<T>(buffers, begin, count, Max{});
    case RedOp::MIN:
      return reduce_tiles<T>(buffers, begin, count, Min{});
    default:
      return reduce_tiles<T>(buffers, begin, count, Add{});
  }
}

}  // namespace

void check_reducible(at::ScalarType dtype, RedOp op) {
  if (op != RedOp::SUM && op != RedOp::AVG && op != RedOp::MAX && op != RedOp::MIN) {
    throw Error(
        YOKE_INVALID_ARGUMENT,
        concat("reduce operation ", static_cast<int>(op), "; allowed: sum, average, max, min"));
  }
  switch (dtype) {
    case at::kDouble:
    case at::kFloat:
    case at::kBFloat16:
    case at::kHalf:
      return;
    case at::kLong:
    case at::kInt:
    case at::kByte:
    case at::kBool:
      if (dtype == at::kBool && op != RedOp::MAX && op != RedOp::MIN) {
        throw Error(YOKE_INVALID_ARGUMENT,
                    "reduction of bool; allowed for bool: the maximum (or) and the minimum (and)");
      }
      if (op != RedOp::AVG) return;
      throw Error(YOKE_INVALID_ARGUMENT,
                  concat("average of ",
                         dtype_text(static_cast<int32_t>(dtype)),
                         "; only floating point can be averaged: use the sum"));
    default:
      throw Error(YOKE_INVALID_ARGUMENT,
                  concat("reduction of ",
                         dtype_text(static_cast<int32_t>(dtype)),
                         "; allowed: fp64, fp32, bf16, fp16, int64, int32, uint8, bool"));
  }
}

void reduce(const ReduceBuffers& buffers, int64_t begin, int64_t count) {
  switch (buffers.dtype) {
    case at::kDouble:
      return reduce_as<double>(buffers, begin, count);
    case at::kFloat:
      return reduce_as<float>(buffers, begin, count);
    case at::kBFloat16:
      return reduce_as<c10::BFloat16>(buffers, begin, count);
    case at::kHalf:
      return reduce_as<c10::Half>(buffers, begin, count);
    case at::kLong:
      return reduce_as<int64_t>(buffers, begin, count);
    case at::kInt:
      return reduce_as<int32_t>(buffers, begin, count);
    case at::kByte:
    case at::kBool:
      return reduce_as<uint8_t>(buffers, begin, count);
    default:
      check_reducible(buffers.dtype, buffers.op);
  }
}

}  // namespace yoke
