// Provides random inputs for tests of the CPU kernels, and compares results with ones in double.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "core/kernels/cpu_kernels.hpp"

namespace yoke {

inline double wide_of(double x) {
  return x;
}
inline double wide_of(float x) {
  return x;
}
inline double wide_of(BFloat16 x) {
  const uint32_t bits = uint32_t{x.bits} << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}
// The value by the definition of the format.
inline double wide_of(Float16 x) {
  const int exponent = x.bits >> 10 & 0x1f, mantissa = x.bits & 0x3ff;
  const double sign = x.bits >= 0x8000 ? -1 : 1;
  if (exponent == 0x1f) return mantissa == 0 ? sign * INFINITY : NAN;
  return sign *
         (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
}

template <class T>
T narrow(double x) {
  return static_cast<T>(x);
}
// Rounds by choosing the nearer of the two neighbours. This shares nothing with the kernels.
template <>
inline BFloat16 narrow<BFloat16>(double x) {
  const float f = static_cast<float>(x);
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  const BFloat16 down{static_cast<uint16_t>(bits >> 16)},
      up{static_cast<uint16_t>((bits >> 16) + 1)};
  const double to_down = std::abs(x - wide_of(down)), to_up = std::abs(x - wide_of(up));
  if (to_down == to_up) return down.bits % 2 == 0 ? down : up;
  return to_down < to_up ? down : up;
}
// Rounds to a multiple of the distance between neighbours. x is at most 65504.
template <>
inline Float16 narrow<Float16>(double x) {
  int exponent = 0;
  std::frexp(x, &exponent);  // x = f 2^exponent with f in [0.5, 1)
  const double unit = std::ldexp(1, std::max(exponent, -13) - 11);
  const double units = std::nearbyint(std::abs(x) / unit);  // at most 2048, ties to even
  const auto magnitude = static_cast<uint16_t>(units + 1024 * std::max(exponent + 13, 0));
  return {static_cast<uint16_t>(magnitude | (std::signbit(x) ? 0x8000 : 0))};
}

template <class T>
std::vector<T> random_values(int64_t count, uint32_t seed, double scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, scale);
  std::vector<T> out;
  for (int64_t i = 0; i < count; ++i) out.push_back(narrow<T>(normal(random)));
  return out;
}

template <class T>
const CpuKernels<T>& of(const CpuKernelTable& t);
template <>
inline const CpuKernels<float>& of(const CpuKernelTable& t) {
  return t.f32;
}
template <>
inline const CpuKernels<double>& of(const CpuKernelTable& t) {
  return t.f64;
}
template <>
inline const CpuKernels<BFloat16>& of(const CpuKernelTable& t) {
  return t.bf16;
}
template <>
inline const CpuKernels<Float16>& of(const CpuKernelTable& t) {
  return t.f16;
}

// Bound of the error, relative to the largest expected value: the rounding of one output element
// and of a sum of some hundred terms.
template <class T>
constexpr double kTolerance = sizeof(T) == 8   ? 1e-14
                              : sizeof(T) == 4 ? 3e-6
                                               : 5e-3;

// Runs every case in every type on every instruction set that this machine has.
template <class T>
class CpuKernelsTest : public ::testing::Test {
 protected:
  using W = Wide<T>;

  template <class F>
  void on_every_table(F&& f) {
    const CpuKernelTables all = all_cpu_kernels();
    for (int i = 0; i < all.count; ++i) {
      SCOPED_TRACE(all.table[i]->instruction_set);
      f(of<T>(*all.table[i]));
    }
  }

  template <class Got>
  static void expect_close(const std::vector<Got>& got,
                           const std::vector<double>& expected,
                           double tolerance = kTolerance<T>) {
    ASSERT_EQ(got.size(), expected.size());
    // Inputs are of size 1. The floor of 0.1 is for sums that cancel to nothing, which have no
    // meaningful relative error.
    double top = 0.1, worst = 0;
    size_t where = 0;
    for (const double e : expected) top = std::max(top, std::abs(e));
    for (size_t i = 0; i < got.size(); ++i) {
      const double error = std::abs(wide_of(got[i]) - expected[i]);
      if (error > worst || std::isnan(error)) {
        worst = error;
        where = i;
      }
    }
    EXPECT_LE(worst / top, tolerance)
        << "at " << where << ": " << wide_of(got[where]) << ", expected " << expected[where];
  }
};

// The types of the kernels, for TYPED_TEST_SUITE.
using CpuKernelTypes = ::testing::Types<float, double, BFloat16, Float16>;

}  // namespace yoke
