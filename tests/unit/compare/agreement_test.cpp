#include "core/compare/agreement.hpp"

#include <gmock/gmock.h>

#include "core/compare/likely_cause.hpp"
#include "tests/unit/compare/made_up.hpp"

namespace yoke::compare {
namespace {

using ::testing::HasSubstr;

Agreement compared(const RunFacts& a, const RunFacts& b) {
  return compare_runs(a, b, required_level(a, b));
}

TEST(Agreement, IsL0ForEqualBits) {
  const Agreement v = compared(made_up_run(30), made_up_run(30));
  EXPECT_EQ(v.level, Level::kL0);
  EXPECT_EQ(v.loss, 0);
  EXPECT_EQ(v.first_bad, -1);
}

TEST(Agreement, IsL1ForEqualLossesOfOtherParameters) {
  RunFacts other = made_up_run(5);
  other.steps[4].hashes[1] = 99;
  EXPECT_EQ(compared(made_up_run(5), other).level, Level::kL1);
}

TEST(Agreement, AllowsRoundingInFp32AndNothingMore) {
  EXPECT_EQ(compared(made_up_run(20), made_up_run(20, 1 + 1e-6)).level, Level::kL1);
  const Agreement v = compared(made_up_run(20), made_up_run(20, 1 + 1e-5));
  EXPECT_EQ(v.level, Level::kL2);
  EXPECT_EQ(v.first_bad, 1);
  EXPECT_NEAR(v.loss, 1e-5, 1e-9);
  EXPECT_EQ(compared(made_up_run(20), made_up_run(20, 1.2)).level, Level::kDiffers);
}

TEST(Agreement, IsSharpInFp64AndMildInBf16) {
  EXPECT_EQ(compared(made_up_run(20, 1, "fp64"), made_up_run(20, 1 + 1e-13, "fp64")).level,
            Level::kL1);
  EXPECT_NE(compared(made_up_run(20, 1, "fp64"), made_up_run(20, 1 + 1e-11, "fp64")).level,
            Level::kL1);
  EXPECT_EQ(compared(made_up_run(20), made_up_run(20, 1.005, "bf16")).level, Level::kL2);
  EXPECT_EQ(required_level(made_up_run(1), made_up_run(1, 1, "bf16")), Level::kL2);
  RunFacts fp8 = made_up_run(1);
  fp8.product = "fp8";
  EXPECT_EQ(required_level(made_up_run(1), fp8), Level::kL2);
  EXPECT_EQ(required_level(made_up_run(1), made_up_run(1)), Level::kL1);
}

TEST(Agreement, NamesTheFirstStepThatIsBad) {
  RunFacts other = made_up_run(30);
  other.steps[6].grad_norm *= 1.01;
  EXPECT_EQ(compared(made_up_run(30), other).first_bad, 7);
  other = made_up_run(30);
  other.steps[24].grad_norm *= 1.01;  // allowed: correct runs may differ this much at step 25
  EXPECT_EQ(compared(made_up_run(30), other).first_bad, -1);
  other.steps[24].loss = NAN;
  EXPECT_EQ(compared(made_up_run(30), other).first_bad, 25);
}

TEST(Agreement, FindsOtherInitialBits) {
  RunFacts other = made_up_run(5);
  other.start.hashes[1] = 7;
  const Agreement v = compared(made_up_run(5), other);
  EXPECT_EQ(v.first_bad, 0);
  const LikelyCause cause = find_likely_cause(made_up_run(5), other, v);
  EXPECT_EQ(cause.id, "initial_values");
  EXPECT_EQ(cause.tensor, "b");
  EXPECT_EQ(cause.step, 0);
}

TEST(Agreement, TakesABreachForADifference) {
  RunFacts other = made_up_run(5);
  other.steps[2].violation =
      Violation{"samples", 1, "", "rank 1 trained on the samples of data rank 0"};
  const Agreement v = compared(made_up_run(5), other);
  EXPECT_EQ(v.first_bad, 3);
  const LikelyCause cause = find_likely_cause(made_up_run(5), other, v);
  EXPECT_EQ(cause.id, "same_samples");
  EXPECT_THAT(cause.explanation, HasSubstr("samples of data rank 0"));
}

TEST(Agreement, FailsBitEqualityAtTheFirstOtherBit) {
  RunFacts other = made_up_run(5);
  other.steps[3].hashes[0] = 99;
  EXPECT_EQ(compare_runs(made_up_run(5), other, Level::kL0).first_bad, 4);
}

TEST(Agreement, LeavesOutWhatAnExternalRunDoesNotReport) {
  RunFacts external = made_up_run(5);
  external.dir = "";
  external.dtype = "";
  external.start.hashes = {};
  for (StepFacts& s : external.steps) s.hashes = {}, s.grad_norm = NAN;
  const Agreement v = compared(made_up_run(5), external);
  EXPECT_EQ(v.level, Level::kL1);  // never L0, because its parameters are unknown
  EXPECT_TRUE(std::isnan(v.grad_norm));
}

}  // namespace
}  // namespace yoke::compare
