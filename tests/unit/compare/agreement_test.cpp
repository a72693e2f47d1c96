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
  EXPECT_EQ(compared(made_up_run(30), other).exceeded,
            "the gradient norm of step 7 differs by 0.01, and 0.0004 is allowed");
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

TEST(Agreement, ComparesNormsOnlyIfBothRunsKnowThem) {
  RunFacts without = made_up_run(5), once = made_up_run(5, 1.01);
  for (StepFacts& s : without.steps) s.grad_norm = NAN;
  EXPECT_TRUE(std::isnan(compared(without, made_up_run(5)).grad_norm));
  for (size_t i = 1; i < once.steps.size(); ++i) once.steps[i].grad_norm = NAN;
  EXPECT_NEAR(compared(made_up_run(5), once).grad_norm, 0.01, 0.001);
}

// Returns the agreement of a run whose losses are off by `off` from those of a run in fp64, with a
// reference whose losses are off by `noise` from step `first` on.
Agreement judged(double noise, double off, int64_t first = 1) {
  const RunFacts exact = made_up_run(20, 1, "fp64"), run = made_up_run(20, 1 + off);
  RunFacts reference = made_up_run(20);
  for (StepFacts& s : reference.steps) s.loss *= s.step < first ? 1 : 1 + noise;
  Agreement v = compared(reference, run);
  EXPECT_TRUE(needs_exact_run(reference, run, v));
  judge_rounding(exact, reference, run, v);
  return v;
}

TEST(Rounding, ExplainsWhatIsNotMuchFurtherFromFp64ThanTheReference) {
  const Agreement v = judged(-1e-6, 30e-6);
  EXPECT_EQ(v.level, Level::kL1);
  EXPECT_EQ(v.first_bad, -1);
  EXPECT_EQ(v.exceeded, "the loss of step 1 differs by 3.1e-05, and 2e-06 is allowed");
  EXPECT_TRUE(v.rounding->explains);
  EXPECT_NEAR(v.rounding->reference, 1e-6, 1e-10);
  EXPECT_NEAR(v.rounding->run, 30e-6, 1e-10);
  // A reference that is further away than the run does not matter.
  EXPECT_EQ(judged(30e-6, 0).level, Level::kL1);
}

TEST(Rounding, DoesNotExplainMore) {
  const Agreement v = judged(-1e-6, 34e-6);
  EXPECT_EQ(v.level, Level::kL2);
  EXPECT_EQ(v.first_bad, 1);
  EXPECT_FALSE(v.rounding->explains);
}

TEST(Rounding, ExplainsADivergenceThatTheReferenceShowsToo) {
  const RunFacts exact = made_up_run(20, 1, "fp64");
  RunFacts reference = made_up_run(20), run = made_up_run(20);
  double grown = 1e-7;
  for (size_t i = 0; i < 20; ++i, grown *= 2) {
    reference.steps[i].loss *= 1 + grown;
    run.steps[i].loss *= 1 - grown;
  }
  Agreement v = compared(reference, run);
  EXPECT_EQ(v.level, Level::kDiffers);
  judge_rounding(exact, reference, run, v);
  EXPECT_EQ(v.level, Level::kL1);
  run.steps[3].loss *= 1.001;  // a fault before rounding has grown
  v = compared(reference, run);
  judge_rounding(exact, reference, run, v);
  EXPECT_EQ(v.level, Level::kDiffers);
}

TEST(Rounding, OfLaterStepsDoesNotExplainAnEarlierDifference) {
  EXPECT_EQ(judged(1e-6, 5e-6, 1).level, Level::kL1);
  EXPECT_EQ(judged(1e-6, 5e-6, 2).level, Level::kL2);
}

TEST(Rounding, IsExaminedForRunsInFp32OnlyAndNotForFaults) {
  const auto examined = [](const RunFacts& a, const RunFacts& b) {
    return needs_exact_run(a, b, compared(a, b));
  };
  EXPECT_TRUE(examined(made_up_run(5), made_up_run(5, 1 + 1e-5)));
  EXPECT_FALSE(examined(made_up_run(5), made_up_run(5, 1 + 1e-6)));
  Agreement v = compared(made_up_run(5), made_up_run(5, 1.1));
  EXPECT_TRUE(needs_exact_run(made_up_run(5), made_up_run(5, 1.1), v));
  v.gradient = 0.02;
  EXPECT_FALSE(needs_exact_run(made_up_run(5), made_up_run(5, 1.1), v));
  EXPECT_FALSE(examined(made_up_run(5, 1, "fp64"), made_up_run(5, 1 + 1e-5, "fp64")));
  EXPECT_FALSE(examined(made_up_run(5), made_up_run(5, 1 + 1e-5, "bf16")));
  RunFacts other = made_up_run(5);
  other.start.hashes[0] = 9;
  EXPECT_FALSE(examined(made_up_run(5), other));
}

}  // namespace
}  // namespace yoke::compare
