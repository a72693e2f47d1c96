#include "core/run/step_results.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "yoke/error.hpp"

namespace yoke {
namespace {

using ::testing::HasSubstr;

YokeStepResult result(double loss, double weight, double norm) {
  YokeStepResult r{};
  r.loss_sum = loss;
  r.loss_weight = weight;
  r.grad_norm = norm;
  return r;
}

YokeStepArgs step(int64_t number) {
  YokeStepArgs args{};
  args.step = number;
  return args;
}

std::string refusal(const YokeStepResult& r, double targets) {
  StepResults results;
  try {
    results.check(step(7), r, targets);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), YOKE_INTERNAL);
    EXPECT_EQ(e.step(), 7);
    return e.what();
  }
  return "";
}

TEST(StepResults, RefusesWhatCannotBe) {
  EXPECT_EQ(refusal(result(6, 4, 0.5), 4), "");
  EXPECT_EQ(refusal(result(6, 4, NAN), 4), "") << "an unknown norm";
  EXPECT_EQ(refusal(result(6, 4, INFINITY), 4), "") << "a skipped step";
  EXPECT_THAT(refusal(result(6, 3, 0.5), 4),
              HasSubstr("the sum over 3 targets, but the batch has 4"));
  EXPECT_THAT(refusal(result(6, NAN, 0.5), 4), HasSubstr("the sum over nan targets"));
  EXPECT_THAT(refusal(result(6, 4, -0.5), 4), HasSubstr("gradient norm -0.5; allowed: 0 or more"));
}

TEST(StepResults, TheHashDependsOnEveryValueOfEveryStep) {
  const auto hash = [](const std::vector<YokeStepResult>& all) {
    StepResults results;
    for (const YokeStepResult& r : all) results.check(step(1), r, r.loss_weight);
    return results.hash();
  };
  const YokeStepResult a = result(6, 4, 0.5);
  EXPECT_EQ(hash({a, a}), hash({a, a}));
  EXPECT_EQ(hash({result(6, 4, NAN)}), hash({result(6, 4, -NAN)}));
  EXPECT_NE(hash({a, result(6.5, 4, 0.5)}), hash({result(6.5, 4, 0.5), a}));
  YokeStepResult other = a;
  other.skipped = 1;
  EXPECT_NE(hash({a}), hash({other}));
  other = a;
  other.loss_scale = 2;
  EXPECT_NE(hash({a}), hash({other}));
  EXPECT_NE(hash({a}), hash({result(6, 4, 0.25)}));
  EXPECT_NE(hash({a}), hash({result(std::nextafter(6.0, 7.0), 4, 0.5)}));
  EXPECT_NE(hash({a}), hash({a, a}));
}

TEST(StepResults, NamesTheFirstRankThatDiffers) {
  const auto text = [](const std::vector<std::string>& texts) -> std::string {
    try {
      throw_difference(texts);
    } catch (const Error& e) {
      return e.what();
    }
  };
  EXPECT_THAT(text({"x", "x", "y", "z"}), HasSubstr("rank 0 x; rank 2 y; every rank must report"));
  EXPECT_THAT(text({"x", "x"}), HasSubstr("since the last report"));
}

}  // namespace
}  // namespace yoke
