#include "core/checkpoint/convert.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "yoke/error.hpp"

namespace yoke {
namespace {

template <class To, class From>
To one(From value, int32_t from, int32_t to) {
  To out{};
  convert(&value, from, &out, to, 1);
  return out;
}

double widened(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// The reference: returns the nearest of all bf16 values, or the one with an even last bit if two
// are equally near. It tries every value in exact arithmetic: long double represents the difference
// of two doubles in the range of these tests exactly.
uint16_t nearest_bf16(double value) {
  uint16_t best = 0;
  long double best_distance = std::numeric_limits<long double>::infinity();
  for (uint32_t exponent_and_mantissa = 0; exponent_and_mantissa < 0x7f80;
       ++exponent_and_mantissa) {
    const auto bits = static_cast<uint16_t>(exponent_and_mantissa);
    const long double distance =
        std::fabs(static_cast<long double>(widened(bits)) - std::fabs(value));
    if (distance < best_distance || (distance == best_distance && bits % 2 == 0)) {
      best = bits;
      best_distance = distance;
    }
  }
  return static_cast<uint16_t>(best | (std::signbit(value) ? 0x8000 : 0));
}

TEST(Convert, WidensExactly) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const auto single = one<float>(half, YOKE_BF16, YOKE_F32);
    const auto wide = one<double>(half, YOKE_BF16, YOKE_F64);
    if (std::isnan(single)) {
      ASSERT_TRUE(std::isnan(wide));
      ASSERT_TRUE(
          std::isnan(one<float>(one<uint16_t>(single, YOKE_F32, YOKE_BF16), YOKE_BF16, YOKE_F32)));
      continue;
    }
    ASSERT_EQ(std::bit_cast<uint32_t>(single), bits << 16);
    ASSERT_EQ(wide, static_cast<double>(single));
    ASSERT_EQ(one<uint16_t>(single, YOKE_F32, YOKE_BF16), half);
    ASSERT_EQ(one<uint16_t>(wide, YOKE_F64, YOKE_BF16), half);
    ASSERT_EQ(one<float>(wide, YOKE_F64, YOKE_F32), single);
  }
}

TEST(Convert, WidensHalfPrecisionExactly) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const auto single = one<float>(half, YOKE_F16, YOKE_F32);
    const int exponent = half >> 10 & 0x1f, mantissa = half & 0x3ff;
    double expected =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    if (exponent == 31) expected = std::numeric_limits<double>::infinity();
    if (exponent == 31 && mantissa != 0) {
      ASSERT_TRUE(std::isnan(single)) << bits;
      continue;
    }
    ASSERT_EQ(single, half >= 0x8000 ? -expected : expected) << bits;
    ASSERT_EQ(std::signbit(single), half >= 0x8000) << bits;
    ASSERT_EQ(one<double>(half, YOKE_F16, YOKE_F64), static_cast<double>(single));
  }
}

TEST(Convert, NarrowsToTheNearest) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 200; ++i) {
    const double value = std::ldexp(std::uniform_real_distribution<double>(-2, 2)(random),
                                    static_cast<int>(random() % 40) - 20);
    ASSERT_EQ(one<uint16_t>(value, YOKE_F64, YOKE_BF16), nearest_bf16(value)) << value;
    const auto single = static_cast<float>(value);
    ASSERT_EQ(one<float>(value, YOKE_F64, YOKE_F32), single);
    ASSERT_EQ(one<uint16_t>(single, YOKE_F32, YOKE_BF16), nearest_bf16(single)) << single;
  }
}

TEST(Convert, RoundsFp64ToBf16OnlyOnce) {
  // 1 + 2^-8 is half way between two bf16 values. A slightly larger value must be rounded up,
  // although the difference is lost in fp32.
  const double above = 1 + 0x1p-8 + 0x1p-40;
  const double below = 1 + 3 * 0x1p-8 - 0x1p-40;
  EXPECT_EQ(static_cast<float>(above), 1 + 0x1p-8F);
  EXPECT_EQ(one<uint16_t>(above, YOKE_F64, YOKE_BF16), 0x3f81);
  EXPECT_EQ(one<uint16_t>(below, YOKE_F64, YOKE_BF16), 0x3f81);
  EXPECT_EQ(one<uint16_t>(-above, YOKE_F64, YOKE_BF16), 0xbf81);
  EXPECT_EQ(one<uint16_t>(1 + 0x1p-8, YOKE_F64, YOKE_BF16), 0x3f80);
  EXPECT_EQ(one<uint16_t>(1 + 3 * 0x1p-8, YOKE_F64, YOKE_BF16), 0x3f82);
}

TEST(Convert, KeepsNanAndMakesTooLargeInfinite) {
  const double nan = std::nan(""), huge = 1e300, inf = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(std::isnan(one<float>(nan, YOKE_F64, YOKE_F32)));
  EXPECT_TRUE(std::isnan(widened(one<uint16_t>(nan, YOKE_F64, YOKE_BF16))));
  EXPECT_EQ(widened(one<uint16_t>(huge, YOKE_F64, YOKE_BF16)), inf);
  EXPECT_EQ(widened(one<uint16_t>(-inf, YOKE_F64, YOKE_BF16)), -inf);
  EXPECT_EQ(one<uint16_t>(1e-300, YOKE_F64, YOKE_BF16), 0);
}

TEST(Convert, RefusesOtherPairs) {
  EXPECT_TRUE(can_convert(YOKE_I64, YOKE_I64));
  EXPECT_FALSE(can_convert(YOKE_I64, YOKE_F64));
  EXPECT_FALSE(can_convert(YOKE_F32, YOKE_F16));
  int64_t value = 3;
  EXPECT_EQ(one<int64_t>(value, YOKE_I64, YOKE_I64), 3);
  EXPECT_THROW(one<double>(value, YOKE_I64, YOKE_F64), Error);
}

}  // namespace
}  // namespace yoke
