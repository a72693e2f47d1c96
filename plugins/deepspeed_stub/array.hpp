// Flat memory of one dtype, and the arithmetic over it without regard to the dtype.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "yoke/tensor.hpp"

namespace yoke::deepspeed_stub {

// Owns memory that is aligned for every instruction set. Throws std::bad_alloc.
class Array {
 public:
  Array() = default;
  Array(int64_t count, int32_t dtype);  // zeroes
  Array(Array&& other) noexcept
      : memory_(std::move(other.memory_)), span_(std::exchange(other.span_, {})) {}
  Array& operator=(Array&& other) noexcept {
    memory_ = std::move(other.memory_);
    span_ = std::exchange(other.span_, {});
    return *this;
  }
  static Array to_be_written(int64_t count, int32_t dtype);
  bool empty() const { return span_.data == nullptr; }
  const Span& span() const { return span_; }
  Span sub(int64_t begin, int64_t n) const { return span_.sub(begin, n); }
  int64_t bytes() const { return span_.bytes(); }

 private:
  struct Free {
    void operator()(void* p) const;
  };
  std::unique_ptr<void, Free> memory_;
  Span span_;
};

// to = from, rounded if need be. Both have the same count. Pairs of dtypes: equal ones, fp32 to
// any, bf16 to fp32.
void copy(const Span& from, const Span& to);
// sum += x; x may be bf16 where the sum is fp32.
void add(const Span& x, const Span& sum);
double squared_norm(const Span& x);

}  // namespace yoke::deepspeed_stub
