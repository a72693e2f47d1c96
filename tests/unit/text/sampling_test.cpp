#include "core/text/sampling.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <vector>

namespace yoke {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

// Probabilities 0.1, 0.4, 0.2, 0.3 at temperature 1.
const std::vector<double> kLogits = {std::log(0.1), std::log(0.4), std::log(0.2), std::log(0.3)};

// Returns how often each id is drawn, as a share of many draws.
std::vector<double> shares(const std::vector<double>& logits, const SamplingOptions& options) {
  constexpr int kDraws = 40000;
  std::mt19937_64 random(11);
  std::vector<double> count(logits.size());
  for (int i = 0; i < kDraws; ++i)
    count[static_cast<size_t>(sample(logits, options, random))] += 1.0 / kDraws;
  return count;
}

void expect_near(const std::vector<double>& shares, const std::vector<double>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    if (expected[i] == 0) {
      EXPECT_EQ(shares[i], 0) << i;
    } else {
      EXPECT_NEAR(shares[i], expected[i], 0.02) << i;  // eight standard deviations
    }
  }
}

TEST(Sampling, FollowsTheDistribution) {
  expect_near(shares(kLogits, {1}), {0.1, 0.4, 0.2, 0.3});
  expect_near(shares(kLogits, {0.5}), {0.01 / 0.3, 0.16 / 0.3, 0.04 / 0.3, 0.09 / 0.3});
  expect_near(shares({0, kNever, 0}, {1}), {0.5, 0, 0.5});
}

TEST(Sampling, TemperatureZeroTakesTheFirstOfTheMostLikely) {
  std::mt19937_64 random(1);
  EXPECT_EQ(sample(std::vector<double>{1, 3, 3, 2}, {0}, random), 1);
}

TEST(Sampling, TopKAndTopPKeepTheMostLikely) {
  expect_near(shares(kLogits, {1, 2}), {0, 4.0 / 7, 0, 3.0 / 7});
  expect_near(shares(kLogits, {1, 9}), {0.1, 0.4, 0.2, 0.3});
  expect_near(shares(kLogits, {1, 0, 0.3}), {0, 1, 0, 0});
  expect_near(shares(kLogits, {1, 0, 0.65}), {0, 4.0 / 7, 0, 3.0 / 7});
  expect_near(shares(kLogits, {1, 0, 0.75}), {0, 4.0 / 9, 2.0 / 9, 3.0 / 9});
  // top_p is a share of what top_k has left: 0.4 of 0.7 is more than half.
  expect_near(shares(kLogits, {1, 2, 0.5}), {0, 1, 0, 0});
  expect_near(shares({2, 2, 2}, {1, 1}), {1, 0, 0});
}

TEST(Sampling, TheSameSeedGivesTheSameIds) {
  std::mt19937_64 one(5), same(5);
  for (int i = 0; i < 100; ++i)
    EXPECT_EQ(sample(kLogits, {1, 3, 0.9}, one), sample(kLogits, {1, 3, 0.9}, same));
}

}  // namespace
}  // namespace yoke
