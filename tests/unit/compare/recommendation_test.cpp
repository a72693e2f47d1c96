#include "core/compare/recommendation.hpp"

#include <gmock/gmock.h>

#include "tests/unit/compare/made_up.hpp"

namespace yoke::compare {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr int64_t kMiB = 1 << 20;

// A case with three repeats around `ms`, whose rank needs `mib`; 0 = unknown.
CaseResult passed(const std::string& name, double ms, int64_t mib, int ranks = 2) {
  CaseResult c = made_up_case(name, {0.98 * ms, ms, 1.02 * ms});
  for (RunFacts& run : c.runs) {
    run.degrees = {{"dp_degree", ranks}};
    for (StepFacts& s : run.steps) s.memory = mib * kMiB;
  }
  return c;
}

Comparison of(std::vector<CaseResult> cases) {
  Comparison c;
  c.cases = std::move(cases);
  return c;
}

std::vector<std::string> tied(const Recommendation& answer) {
  std::vector<std::string> names;
  for (const CaseResult* c : answer.tied) names.push_back(c->spec.name);
  return names;
}

TEST(Recommendation, TakesTheFastest) {
  const Comparison c = of({passed("ox", 20, 100), passed("mule", 10, 100)});
  const auto answers = recommendations(c);
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_THAT(tied(answers[0]), ElementsAre("mule"));
  EXPECT_EQ(answers[0].leanest, nullptr);
  EXPECT_EQ(answers[0].text,
            "Take mule: it is the fastest, 10 ms per step; ox takes 2.00 times as long.");
}

TEST(Recommendation, TakesTheLeastMemoryOfThoseThatTie) {
  const Comparison c =
      of({passed("ddp", 10, 160), passed("fsdp", 10.2, 150), passed("cp", 19, 149)});
  const auto answers = recommendations(c);
  EXPECT_THAT(tied(answers[0]), ElementsAre("fsdp", "ddp"));
  EXPECT_EQ(answers[0].text,
            "Take fsdp: it is as fast as ddp (10.2 ms per step; ddp takes 10 ms; the repeats do "
            "not separate them) and needs 150.0 MiB per rank; ddp needs 160.0 MiB.");
}

TEST(Recommendation, SaysThatLessMemoryCostsTraffic) {
  Comparison c = of({passed("ddp", 10, 160), passed("fsdp", 10.2, 150)});
  for (StepFacts& s : c.cases[0].runs[0].steps) s.traffic[0].bytes = 2048;
  EXPECT_THAT(recommendations(c)[0].text,
              HasSubstr("ddp needs 160.0 MiB. It communicates 3.9 KiB per step, and ddp 2.0 KiB."));
  c.cases.push_back(passed("zero", 10.2, 170));
  EXPECT_THAT(recommendations(c)[0].text,
              HasSubstr("they need 160.0 MiB to 170.0 MiB. It communicates 3.9 KiB per step, and "
                        "they 2.0 KiB to 3.9 KiB."));
}

TEST(Recommendation, TakesTheLeastTrafficIfTimeAndMemoryTie) {
  Comparison c = of({passed("fsdp", 10, 150), passed("ddp", 10.1, 152), passed("tp", 10.2, 153)});
  for (StepFacts& s : c.cases[1].runs[0].steps) s.traffic[0].bytes = 1000;
  const auto answers = recommendations(c);
  EXPECT_THAT(tied(answers[0]), ElementsAre("ddp", "fsdp", "tp"));
  EXPECT_EQ(answers[0].text,
            "Take ddp: it is as fast as fsdp and tp (10.1 ms per step; they take 10 ms to "
            "10.2 ms; the repeats do not separate them), needs about as much memory (152.0 MiB per "
            "rank) and communicates the least (1000 B per step).");
}

// Two cases whose medians differ, but not in every repeat, and a slower one.
Comparison contradicting(int64_t zero1_mib, int64_t ddp_mib) {
  Comparison c =
      of({passed("zero1", 144, zero1_mib), passed("ddp", 210, ddp_mib), passed("pp", 500, 100)});
  c.cases[0].step_ms = {74, 144, 184};
  c.cases[1].step_ms = {102, 219, 180};
  return c;
}

TEST(Recommendation, NamesNoCaseIfTheRepeatsContradictEachOther) {
  Comparison c = contradicting(150, 200);
  EXPECT_EQ(recommendations(c)[0].choice(), nullptr);
  EXPECT_EQ(recommendations(c)[0].if_tied, &c.cases[0]);
  EXPECT_EQ(
      recommendations(c)[0].text,
      "No clear winner: zero1 and ddp cannot be told apart by speed. If their speed counts as a "
      "tie, take zero1: it needs the least memory. Memory per rank and traffic per step are 150.0 "
      "MiB and 3.9 KiB for zero1, 200.0 MiB and 3.9 KiB for ddp. Which one is slower changes from "
      "repeat to repeat, and the times of one case vary by up to 2.49 times. zero1 has the "
      "shortest median, 144 ms per step; pp is slower in most repeats.");
  EXPECT_THAT(recommendation_text(c),
              ElementsAre(HasSubstr("No clear winner"),
                          "Compare again on a quieter machine, or with --repeats 7."));
  c.cases.push_back(passed("one", 5, 100, 1));
  c.cases.push_back(passed("uno", 6, 100, 1));
  EXPECT_THAT(recommendations(c)[1].text,
              HasSubstr("With 2 ranks, no clear winner: zero1 and ddp"));
  EXPECT_EQ(recommendations(c)[0].if_tied, nullptr);
}

// The case with the shortest median is not preferred if it needs more memory or traffic.
TEST(Recommendation, SaysWhichUndecidedCaseCostsTheLeast) {
  EXPECT_THAT(recommendations(contradicting(200, 150))[0].text,
              AllOf(HasSubstr("take ddp: it needs the least memory. "),
                    HasSubstr("are 150.0 MiB and 3.9 KiB for ddp, 200.0 MiB and 3.9 KiB for")));
  Comparison equal = contradicting(150, 150);
  EXPECT_EQ(recommendations(equal)[0].if_tied, nullptr);
  EXPECT_THAT(recommendations(equal)[0].text,
              HasSubstr("by speed. Take any of them: their memory and traffic are about equal, "
                        "too. Memory per rank"));
  for (StepFacts& s : equal.cases[1].runs[0].steps) s.traffic[0].bytes = 1000;
  EXPECT_THAT(recommendations(equal)[0].text,
              HasSubstr("take ddp: it communicates the least, and all of them need about as much "
                        "memory. Memory per rank and traffic per step are 150.0 MiB and 1000 B"));
  equal.cases.push_back(equal.cases[0]);
  equal.cases[3].spec.name = "fat";
  for (RunFacts& run : equal.cases[3].runs)
    for (StepFacts& s : run.steps) s.memory = 300 * kMiB;
  EXPECT_THAT(recommendations(equal)[0].text,
              HasSubstr("take ddp: it communicates the least of those that need about the least"));
  equal.cases[1].runs[0].steps = equal.cases[0].runs[0].steps;
  EXPECT_THAT(recommendations(equal)[0].text,
              HasSubstr("take zero1: it has the shortest median of those that need about the le"));
}

TEST(Recommendation, SaysThatCostsAreUnknown) {
  EXPECT_THAT(recommendations(contradicting(0, 150))[0].text,
              HasSubstr("150.0 MiB and 3.9 KiB for ddp, unknown and 3.9 KiB for zero1."));
}

// A case that is surely slower, but needs less memory than all that cannot be told apart.
TEST(Recommendation, NamesASlowerCaseThatNeedsLessThanAllUndecidedOnes) {
  Comparison c = contradicting(150, 200);
  c.cases[2].step_ms = {280, 280, 280};
  EXPECT_THAT(recommendations(c)[0].text,
              HasSubstr("If memory is short, take pp: it needs 100.0 MiB instead of 150.0 MiB per "
                        "rank, and its steps take 1.94 times as long."));
  c = contradicting(200, 100);
  c.cases[2].step_ms = {280, 280, 280};
  EXPECT_EQ(recommendations(c)[0].leanest, nullptr);
}

TEST(Recommendation, TakesTheFasterOneIfMemoryIsAboutEqual) {
  const Comparison c = of({passed("a", 10.1, 1000), passed("b", 10, 1005)});
  EXPECT_THAT(tied(recommendations(c)[0]), ElementsAre("b", "a"));
}

TEST(Recommendation, NamesASlowerCaseThatNeedsLess) {
  const Comparison c =
      of({passed("ddp", 10, 200), passed("zero3", 14, 120), passed("fsdp", 12, 150)});
  const auto answers = recommendations(c);
  ASSERT_NE(answers[0].leanest, nullptr);
  EXPECT_EQ(answers[0].leanest->spec.name, "zero3");
  EXPECT_THAT(answers[0].text,
              HasSubstr("If memory is short, take zero3: it needs 120.0 MiB instead of 200.0 MiB "
                        "per rank, and its steps take 1.40 times as long."));
}

// 2 % less memory is not worth a step that takes half as long again.
TEST(Recommendation, NamesTheFastestOfThoseThatNeedAboutTheLeast) {
  const Comparison c =
      of({passed("ddp", 10, 200), passed("tp", 18, 118), passed("zero3", 12, 120)});
  EXPECT_EQ(recommendations(c)[0].leanest->spec.name, "zero3");
}

TEST(Recommendation, ComparesNumbersOfRanks) {
  std::vector<CaseResult> cases{passed("a", 20, 100, 1), passed("b", 10.04, 100, 2)};
  EXPECT_THAT(recommendation_text(of(cases)),
              Contains("The steps of these cases take 20 ms with 1 rank, 10 ms with 2 ranks."));
  cases.pop_back();
  cases.push_back(passed("c", 10, 100, 1));
  EXPECT_THAT(recommendation_text(of(cases)), Not(Contains(HasSubstr("The steps of these cases"))));
}

TEST(Recommendation, NamesNoSlowerCaseThatNeedsHardlyLessOrIsMuchSlower) {
  const Comparison c =
      of({passed("ddp", 10, 200), passed("zero3", 14, 195), passed("pp", 20.1, 100)});
  EXPECT_EQ(recommendations(c)[0].leanest, nullptr);
}

TEST(Recommendation, PrefersKnownMemory) {
  const Comparison c = of({passed("peer", 10, 0), passed("ddp", 10.1, 100)});
  EXPECT_THAT(tied(recommendations(c)[0]), ElementsAre("ddp", "peer"));
  EXPECT_THAT(recommendations(c)[0].text, HasSubstr("the others have not reported their memory"));
  const Comparison unknown = of({passed("a", 10, 0), passed("b", 10, 0)});
  EXPECT_THAT(recommendations(unknown)[0].text, HasSubstr("the memory of none of them is known"));
}

// One slow repeat makes a range wide. It must not tie with cases that are usually slower.
TEST(Recommendation, TiesOnlyCasesOfAboutTheSameTime) {
  Comparison c = of({passed("fsdp", 10, 150), passed("zero", 11.2, 100), passed("ddp", 10.4, 160)});
  for (CaseResult& one : c.cases) one.step_ms.resize(5, one.step_ms[1]);
  c.cases[0].step_ms[2] = 12;
  const auto answers = recommendations(c);
  EXPECT_THAT(tied(answers[0]), ElementsAre("fsdp", "ddp"));
  c.cases.pop_back();
  EXPECT_THAT(recommendations(c)[0].text, HasSubstr("zero takes 1.12 times as long."));
}

TEST(Recommendation, ListsFewOfManyTies) {
  std::vector<CaseResult> cases = {passed("best", 10, 100)};
  for (int i = 0; i < 9; ++i) cases.push_back(passed("c" + std::to_string(i), 10.1, 110 + i));
  EXPECT_EQ(recommendations(of(cases))[0].text,
            "Take best: it is as fast as c0, c1, c2, c3 and 5 more (10 ms per step; they take "
            "10.1 ms; the repeats do not separate them) and needs 100.0 MiB per rank; they need "
            "110.0 MiB to 118.0 MiB.");
}

TEST(Recommendation, AnswersForEachNumberOfRanks) {
  const Comparison c = of({passed("a1", 30, 100, 1),
                           passed("a2", 20, 100, 2),
                           passed("b2", 10, 100, 2),
                           passed("a4", 5, 100, 4)});
  const auto answers = recommendations(c);
  ASSERT_THAT(answers, SizeIs(3));
  EXPECT_EQ(answers[1].ranks, 2);
  EXPECT_THAT(answers[0].text, HasSubstr("With 1 rank, take a1: no other case can be compared"));
  EXPECT_THAT(answers[1].text, HasSubstr("With 2 ranks, take b2: it is the fastest"));
  EXPECT_THAT(answers[2].text, HasSubstr("With 4 ranks, take a4"));
}

TEST(Recommendation, LeavesOutWhatDidNotPass) {
  Comparison c = of({passed("a", 5, 10), passed("b", 6, 10), passed("c", 10, 100)});
  c.cases.push_back(passed("d", 12, 100));
  c.cases[0].agreement.level = Level::kDiffers;
  c.cases[1].failure = "exit code 1";
  c.cases.push_back(passed("e", 1, 1));
  c.cases.back().by_design = true;
  EXPECT_THAT(tied(recommendations(c)[0]), ElementsAre("c"));
  EXPECT_THAT(
      recommendation_text(c),
      ElementsAre(
          HasSubstr("Take c"),
          HasSubstr("Not considered: a (did not pass), b (failed), e (differs by design).")));
}

TEST(Recommendation, NeedsThreeRepeatsAndTwoCases) {
  Comparison few = of({passed("a", 5, 10), passed("b", 6, 10)});
  few.plan.repeats = 1;
  EXPECT_THAT(recommendations(few), IsEmpty());
  EXPECT_THAT(recommendation_text(few),
              ElementsAre(HasSubstr("1 repeat is too few to tell the times apart")));
  EXPECT_THAT(recommendation_text(of({passed("a", 5, 10)})),
              ElementsAre(HasSubstr("fewer than two cases passed with known times")));
}

// The ranks of an external command are not known.
TEST(Recommendation, ConsidersExternalCasesAmongEqualRanksOnly) {
  CaseResult peer = passed("peer", 5, 10);
  for (RunFacts& run : peer.runs) run.dir.clear();
  const Comparison equal = of({passed("a", 10, 100), peer});
  EXPECT_THAT(tied(recommendations(equal)[0]), ElementsAre("peer"));
  const Comparison mixed = of({passed("a", 10, 100, 1), passed("b", 9, 100, 2), peer});
  EXPECT_THAT(tied(recommendations(mixed)[0]), ElementsAre("a"));
  EXPECT_THAT(tied(recommendations(mixed)[1]), ElementsAre("b"));
}

}  // namespace
}  // namespace yoke::compare
