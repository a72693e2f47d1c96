// What the matrix products of a thread cost, and what rounding to fp8 does to their operands. If a
// thread has no meter, a product only tests a pointer.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <chrono>
#include <cstdint>
#include <optional>

namespace yoke::ops {

// Numbers that were rounded to fp8 for products. A number that is rounded for several products, or
// again in the backward, counts each time.
struct RoundedNumbers {
  int64_t all = 0;
  int64_t largest = 0;  // became the largest number of their format, in absolute value
  int64_t zeroed = 0;   // became zero, but were not
};

// Measures the constructing thread from construction on. A thread may have at most one meter, which
// it must destroy itself.
class ProductMeter {
 public:
  ProductMeter();
  ~ProductMeter();
  ProductMeter(const ProductMeter&) = delete;
  ProductMeter& operator=(const ProductMeter&) = delete;

  // Returns what was rounded so far, by looking at every number. Unset: operands were
  // distributed tensors, whose numbers the host does not see. Waits for the device.
  std::optional<RoundedNumbers> rounded() const;
  // Return the time so far in matrix products of any kind, without the rounding of their
  // operands, and in that rounding. The time of work on a device is unknown.
  double product_seconds() const { return product_seconds_; }
  double rounding_seconds() const { return rounding_seconds_; }
  double seconds() const;  // since the construction

  // Returns the meter of this thread, or NULL.
  static ProductMeter* current();
  // Counts the numbers of a matrix [n, k]. rounded: the same numbers in fp8, in any order; it may
  // contain additional zeros.
  void count(const at::Tensor& matrix, const at::Tensor& rounded);
  void add_product(double seconds) { product_seconds_ += seconds; }
  void add_rounding(double seconds) { rounding_seconds_ += seconds; }

 private:
  at::CallbackHandle observer_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  double product_seconds_ = 0, rounding_seconds_ = 0;
  int64_t all_ = 0;
  at::Tensor
      sums_;  // int64, numbers that became the largest and zero; on the device of the matrices
  bool distributed_ = false;
};

// Tells the meter of this thread, if it has one, to which fp8 numbers a matrix was rounded; see
// ProductMeter::count().
inline void count_rounded(const at::Tensor& matrix, const at::Tensor& rounded) {
  if (ProductMeter* const meter = ProductMeter::current()) meter->count(matrix, rounded);
}

// Adds the time of a scope to the rounding of this thread's meter.
class RoundingTimer {
 public:
  RoundingTimer() : meter_(ProductMeter::current()) {
    if (meter_ != nullptr) begin_ = std::chrono::steady_clock::now();
  }
  ~RoundingTimer() {
    if (meter_ == nullptr) return;
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin_;
    meter_->add_rounding(time.count());
  }
  RoundingTimer(const RoundingTimer&) = delete;
  RoundingTimer& operator=(const RoundingTimer&) = delete;

 private:
  ProductMeter* const meter_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace yoke::ops
