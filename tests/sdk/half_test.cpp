// All fp16 numbers are converted both ways, and every midpoint between two of them with its
// neighbours, where rounding changes direction.
#include "yoke/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace {

// The value by the definition of the format.
double plain_value(uint16_t half) {
  const int exponent = half >> 10 & 0x1f, mantissa = half & 0x3ff;
  const double sign = half >= 0x8000 ? -1 : 1;
  if (exponent == 0x1f) return mantissa == 0 ? sign * INFINITY : NAN;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

TEST(Half, WidensEveryNumberExactly) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const double expected = plain_value(half);
    const float value = yoke_half_to_float(half);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
    } else {
      ASSERT_EQ(value, expected) << bits;
    }
    ASSERT_EQ(std::signbit(value), bits >= 0x8000) << bits;
  }
}

TEST(Half, NarrowsWhatItWidened) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const uint16_t back = yoke_float_to_half(yoke_half_to_float(half));
    if (std::isnan(plain_value(half))) {
      ASSERT_EQ(back, 0x7e00 | (bits & 0x8000));
    } else {
      ASSERT_EQ(back, half);
    }
  }
}

// Of two neighbours the nearer one is right, and half way the one with an even last bit. The
// neighbour above the largest number counts as 65536, from which infinity is made.
TEST(Half, RoundsToTheNearestNumberTiesToEven) {
  for (uint16_t low = 0; low < 0x7c00; ++low) {
    const auto high = static_cast<uint16_t>(low + 1);
    const double above = high == 0x7c00 ? 65536 : plain_value(high);
    const auto middle = static_cast<float>((plain_value(low) + above) / 2);
    const uint16_t even = low % 2 == 0 ? low : high;
    for (const float sign : {1.0F, -1.0F}) {
      const uint16_t bit = sign < 0 ? 0x8000 : 0;
      ASSERT_EQ(yoke_float_to_half(sign * middle), even | bit) << low;
      ASSERT_EQ(yoke_float_to_half(sign * std::nextafter(middle, 0.0F)), low | bit) << low;
      ASSERT_EQ(yoke_float_to_half(sign * std::nextafter(middle, 1e9F)), high | bit) << low;
    }
  }
}

TEST(Half, BecomesInfiniteOrZeroOutsideOfItsRange) {
  EXPECT_EQ(yoke_float_to_half(1e30F), 0x7c00);
  EXPECT_EQ(yoke_float_to_half(-std::numeric_limits<float>::infinity()), 0xfc00);
  EXPECT_EQ(yoke_float_to_half(1e-30F), 0);
  EXPECT_EQ(yoke_float_to_half(-std::numeric_limits<float>::denorm_min()), 0x8000);
}

}  // namespace
