#include "core/model/init.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <string>
#include <vector>

namespace yoke {
namespace {

// Computes one element by the definition in init.hpp.
float plain(const std::string& name, uint64_t seed, double std, int64_t i) {
  uint64_t key = 0xCBF29CE484222325ull;
  for (const unsigned char c : name) key = (key ^ c) * 0x100000001B3ull;
  uint64_t x = (key ^ seed) + (static_cast<uint64_t>(i) + 1) * 0x9E3779B97F4A7C15ull;
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9ull;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBull;
  x ^= x >> 31;
  const double u = std::ldexp(static_cast<double>(x >> 40), -24);
  return static_cast<float>((2 * u - 1) * std::sqrt(3.0) * std);
}

TEST(Init, GivesTheAnchorsOfThePythonPeer) {
  std::vector<float> v(4);
  init_uniform("model.embed_tokens.weight", 0, 0.02, 0, 4, v.data());
  EXPECT_EQ(v,
            (std::vector<float>{-0.00891725998f, -0.0124695068f, 0.000920427032f, -0.0174284503f}));
  init_uniform("model.layers.0.mlp.down_proj.weight", 0, 0.02 / std::sqrt(24.0), 0, 2, v.data());
  EXPECT_EQ(v[0], -0.000931249815f);
  EXPECT_EQ(v[1], 0.00639463356f);
}

TEST(Init, GivesTheSameBitsForAnyRange) {
  EXPECT_TRUE(rc::check([] {
    const auto name = *rc::gen::string<std::string>();
    const auto seed = *rc::gen::arbitrary<uint64_t>();
    const auto begin = *rc::gen::inRange<int64_t>(0, int64_t{1} << 40),
               count = *rc::gen::inRange<int64_t>(0, 300);
    std::vector<float> got(static_cast<size_t>(count)), expected;
    init_uniform(name, seed, 0.02, begin, count, got.data());
    for (int64_t i = 0; i < count; ++i) expected.push_back(plain(name, seed, 0.02, begin + i));
    RC_ASSERT(got == expected);
  }));
}

TEST(Init, HasTheStandardDeviationAskedFor) {
  std::vector<float> v(1 << 18);
  init_uniform("w", 1, 0.02, 0, 1 << 18, v.data());
  double sum = 0, squares = 0;
  for (const float x : v) {
    sum += x;
    squares += double{x} * x;
  }
  const double n = static_cast<double>(v.size());
  EXPECT_NEAR(sum / n, 0, 2e-4);
  EXPECT_NEAR(std::sqrt(squares / n), 0.02, 1e-4);
}

}  // namespace
}  // namespace yoke
