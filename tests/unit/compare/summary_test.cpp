#include "core/compare/summary.hpp"

#include <gmock/gmock.h>

#include "tests/unit/compare/made_up.hpp"

namespace yoke::compare {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(TableRows, HaveACellForEachColumn) {
  Comparison c = five_cases(3);
  c.cases[4].failure = "exit code 1";
  const auto rows = table_rows(c);
  ASSERT_EQ(rows.size(), 6u);
  for (const auto& row : rows) EXPECT_EQ(row.size(), table_header().size());
  EXPECT_THAT(rows[1],
              ElementsAre("a",
                          "2",
                          "dp_degree 2",
                          "L1",
                          "0.0e+00",
                          "0.0e+00",
                          "11.0 (10.0 .. 12.0)",
                          "46,545",
                          "1.00x",
                          "1.0 MiB",
                          "3.9 KiB"));
}

TEST(Remarks, DescribeTheProductsOfRunsThatMeasureThem) {
  Comparison c = five_cases(3);
  EXPECT_THAT(remarks(c), IsEmpty());
  c.cases[0].runs[0].products = Products{1, 2, 4, 0, 0, 0};  // those of a run with tp
  c.cases[1].runs[0].products = Products{1, 2, 4, 2'000'000, 500, 40'000};
  EXPECT_THAT(
      remarks(c),
      ElementsAre("a: products take 25 % and rounding to fp8 takes 50 % of the time",
                  "b: products take 25 % and rounding to fp8 takes 50 % of the time; of 2,000,000 "
                  "rounded numbers 0.025 % became the largest of their format and 2 % zero"));
}

TEST(ByDesign, IsReportedByLossAndTraffic) {
  Comparison c = five_cases(8);
  c.reference->runs = {made_up_run(8)};
  CaseResult& diloco = c.cases[1];
  diloco.agreement.level = Level::kDiffers;
  EXPECT_FALSE(diloco.passed());
  diloco.by_design = true;
  for (RunFacts& run : diloco.runs) run = made_up_run(8, 1.02);
  diloco.runs[0].update = "local";
  EXPECT_TRUE(diloco.passed());
  EXPECT_EQ(table_rows(c)[2][3], "local update");
  EXPECT_THAT(
      remarks(c),
      ElementsAre(AllOf(HasSubstr("b updates its ranks independently"),
                        HasSubstr("mean training loss is 2.612, +2 % relative to reference"),
                        HasSubstr("31.2 KiB in all"))));  // 8 steps of 4000 bytes
  EXPECT_THAT(problems(c), IsEmpty());

  diloco.held_out_loss = 3;
  EXPECT_THAT(remarks(c),
              ElementsAre(HasSubstr("mean training loss")));  // that of the reference is unknown
  c.reference->held_out_loss = 2;
  EXPECT_THAT(remarks(c), ElementsAre(HasSubstr("its held-out loss is 3, +50 % relative to")));
}

TEST(ByDesign, ComparesItsTrafficWithTheLeastOnAsManyRanks) {
  Comparison c = five_cases(8);
  c.reference->runs = {made_up_run(8)};
  CaseResult& diloco = c.cases[1];
  diloco.by_design = true;
  diloco.runs[0].update = "local";
  const auto set_traffic = [&](size_t i, int ranks, int64_t bytes) {
    RunFacts& run = c.cases[i].runs[0];
    run.degrees = {{"dp_degree", ranks}};
    for (StepFacts& s : run.steps) s.traffic = {{"dp", "all_reduce", "fp32", 1, bytes, 0}};
  };
  for (size_t i = 0; i < c.cases.size(); ++i) set_traffic(i, 2, 8000);
  set_traffic(1, 2, 1000);
  set_traffic(0, 4, 100);   // other number of ranks
  set_traffic(2, 2, 4000);  // least
  EXPECT_THAT(remarks(c),
              ElementsAre(HasSubstr("in all, 25 % of that of " + c.cases[2].spec.name)));
}

TEST(ByDesign, StillNeedsEqualRepeats) {
  Comparison c = five_cases(8);
  c.cases[1].by_design = true;
  c.cases[1].repeatable = false;
  EXPECT_FALSE(c.cases[1].passed());
  EXPECT_THAT(problems(c), ElementsAre(HasSubstr("b is not repeatable")));
}

// A model of a user counts its own tokens, which need not be data.seq_len for each sample.
TEST(TokensPerSecond, AreThoseThatTheRunCounted) {
  Comparison c = two_cases({10}, {20});
  c.plan.tokens_per_step = 512;
  EXPECT_DOUBLE_EQ(tokens_per_second(c, c.cases[0]), 51200);
  c.cases[0].runs[0].steps.back().tokens = 40;
  EXPECT_DOUBLE_EQ(tokens_per_second(c, c.cases[0]), 4000);
}

}  // namespace
}  // namespace yoke::compare
