#include "core/data/mixture.hpp"

#include <gmock/gmock.h>
#include <rapidcheck.h>

#include "tests/unit/data/token_files.hpp"

namespace yoke {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<size_t> sources_of(const Mixture& mixture, int64_t samples) {
  std::vector<size_t> sources;
  for (int64_t n = 0; n < samples; ++n) sources.push_back(mixture.at(n).source);
  return sources;
}

// Returns whether the promises of the header hold for the first `samples` samples, by counting
// them. `parts` are the weights as whole numbers. All comparisons are exact.
bool is_fair(const std::vector<int64_t>& parts, int64_t samples) {
  const Mixture mixture(std::vector<double>(parts.begin(), parts.end()));
  int64_t sum = 0;
  for (const int64_t part : parts) sum += part;
  std::vector<int64_t> count(parts.size());
  for (int64_t n = 0; n < samples; ++n) {
    for (size_t s = 0; s < parts.size(); ++s) {
      // |count - n * part / sum| < 1
      if (std::abs(count[s] * sum - n * parts[s]) >= sum) return false;
      if (mixture.count(s, n) != count[s]) return false;
    }
    const Mixture::Place place = mixture.at(n);
    if (place.source >= parts.size() || place.index != count[place.source]++) return false;
  }
  return true;
}

TEST(Mixture, KeepsEveryCountWithinOneOfItsWeight) {
  EXPECT_TRUE(rc::check([] {
    const auto parts = *rc::gen::resize(8,
                                        rc::gen::nonEmpty(rc::gen::container<std::vector<int64_t>>(
                                            rc::gen::inRange<int64_t>(1, 60))));
    int64_t sum = 0;
    for (const int64_t part : parts) sum += part;
    RC_ASSERT(is_fair(parts, 2 * sum + 3));
  }));
}

TEST(Mixture, KeepsEveryCountWithinOneForAllSmallWeights) {
  EXPECT_TRUE(rc::check([] {
    const auto n = [] { return *rc::gen::inRange<int64_t>(1, 7); };
    RC_ASSERT(is_fair({n(), n(), n(), n()}, 50));
  }));
  for (int64_t a = 1; a <= 9; ++a) {
    for (int64_t b = 1; b <= 9; ++b) {
      for (int64_t c = 1; c <= 9; ++c) EXPECT_TRUE(is_fair({a, b, c}, 60));
    }
  }
}

// Many light sources become due at the same time, which breaks simpler rules: rounding each count
// to its nearest number delays the heavy source by more than one.
TEST(Mixture, KeepsAHeavySourceOnTimeBesideManyLightOnes) {
  EXPECT_TRUE(rc::check([] {
    std::vector<int64_t> parts(*rc::gen::inRange<size_t>(2, 30), 1);
    parts.push_back(*rc::gen::inRange<int64_t>(50, 1000));
    RC_ASSERT(is_fair(parts, 1200));
  }));
}

// A run that is resumed with another release must read the same samples.
TEST(Mixture, KeepsItsOrder) {
  EXPECT_THAT(sources_of(Mixture({0.7, 0.3}), 12), ElementsAre(0, 0, 1, 0, 0, 1, 0, 0, 0, 1, 0, 0));
  EXPECT_THAT(sources_of(Mixture({1, 1, 2}), 8), ElementsAre(2, 0, 1, 2, 2, 0, 1, 2));
}

TEST(Mixture, DependsOnTheRatioOfTheWeightsOnly) {
  const auto expected = sources_of(Mixture({7, 3}), 40);
  for (const std::vector<double>& weights :
       {std::vector<double>{0.7, 0.3}, {70, 30}, {0.000007, 0.000003}, {1.4e6, 6e5}})
    EXPECT_EQ(sources_of(Mixture(weights), 40), expected);
  EXPECT_DOUBLE_EQ(Mixture({0.7, 0.3}).share(0), 0.7);
}

TEST(Mixture, FindsLateSamplesDirectly) {
  const Mixture mixture({0.123456, 0.876544});
  const int64_t late = int64_t{1} << 40;
  const Mixture::Place place = mixture.at(late);
  EXPECT_EQ(mixture.count(place.source, late), place.index);
  EXPECT_EQ(mixture.count(0, late) + mixture.count(1, late), late);
  EXPECT_LT(
      std::abs(static_cast<double>(mixture.count(0, late)) - 0.123456 * static_cast<double>(late)),
      1.001);  // the product of doubles is rounded
}

TEST(Mixture, GivesOneSourceAllSamples) {
  EXPECT_THAT(sources_of(Mixture({0.25}), 3), ElementsAre(0, 0, 0));
}

TEST(Mixture, RefusesWeightsWithoutAShortPeriod) {
  const std::pair<std::vector<double>, const char*> rows[] = {
      {{0.5, 0}, "0.0 cannot be used"},
      {{-1, 2}, "-1.0 cannot be used"},
      {{1e10, 1}, "1e10 cannot be used"},
      {{1.0 / 3, 2.0 / 3}, "at most six decimals; for thirds write [1, 2]"},
      {{0.9999999, 1}, "at most six decimals"},
      {{1000000, 1}, "more than 1000000 samples"},
      {{123457, 987654321}, "give fewer digits"},
  };
  for (const auto& [weights, fragment] : rows) {
    const Error e = error_of([&, w = weights] { Mixture{w}; });
    EXPECT_EQ(e.code(), YOKE_INVALID_ARGUMENT) << fragment;
    EXPECT_THAT(e.what(), HasSubstr("data.weights = ["));
    EXPECT_THAT(e.what(), HasSubstr(fragment));
  }
  EXPECT_NO_THROW(Mixture({999999, 1}));
}

}  // namespace
}  // namespace yoke
