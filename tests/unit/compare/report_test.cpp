#include "core/compare/report.hpp"

#include <gmock/gmock.h>

#include "tests/unit/compare/made_up.hpp"

namespace yoke::compare {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Report, IsOneFileWithoutScriptOrNetwork) {
  const std::string html = to_html(five_cases(20), "yoke compare run.toml --case \"a:x=<b>\"");
  EXPECT_THAT(html,
              AllOf(Not(HasSubstr("<script")),
                    Not(HasSubstr("http:")),
                    Not(HasSubstr("https:")),
                    Not(HasSubstr("src=")),
                    HasSubstr("default-src 'none'")));
  EXPECT_THAT(html, AllOf(HasSubstr("run &lt;1&gt;.toml"), HasSubstr("a:x=&lt;b&gt;")));
  EXPECT_EQ(count(html, "<svg"), 12u);  // six plots, for a screen and for a telephone
  EXPECT_EQ(count(html, "<svg"), count(html, "</svg>"));
  EXPECT_EQ(count(html, "<polyline"),
            2 * (1u + 5u + 5u));  // losses of the reference, and two differences from it
}

TEST(Report, OfFiveCasesAnd500StepsIsSmall) {
  EXPECT_LE(to_html(five_cases(500), "").size(), 300'000u);
}

TEST(Report, SaysWhatDiffersAndWhy) {
  Comparison c = five_cases(20);
  c.cases[1].agreement.level = Level::kDiffers;
  c.cases[1].cause = LikelyCause{"x", "missing reduction", 1, "model.norm", 0.5, "replicas part"};
  c.cases[2].failure = "exit code 1";
  const std::string html = to_html(c, "");
  EXPECT_THAT(html,
              AllOf(HasSubstr("first at step 1 in 'model.norm'"),
                    HasSubstr("replicas part"),
                    HasSubstr("c failed: exit code 1"),
                    HasSubstr("3 of 5 cases agree")));
}

TEST(Report, BeginsWithTheAnswer) {
  const std::string html = to_html(two_cases({20, 21, 22}, {10, 11, 12}), "");
  EXPECT_THAT(html, HasSubstr("<div class=\"answer\">\n<p><b>Take mule</b>: it is the fastest"));
  EXPECT_LT(html.find("Take mule"), html.find("<table>"));
  EXPECT_EQ(count(html, "class=\"ring\""), 2 * 1u);
  EXPECT_EQ(count(html, "class=\"range\""), 2 * 2u);
  EXPECT_EQ(count(html, "<tr class=\"take\"><td>mule</td>"), 1u);
  EXPECT_EQ(count(html, "<tr class=\"take\">"), 1u);
  const std::string unclear = to_html(two_cases({20, 21, 22}, {23, 25, 12}), "");
  EXPECT_THAT(unclear, HasSubstr("<div class=\"answer unclear\">\n<p><b>No clear winner</b>: "));
  EXPECT_EQ(count(unclear, "class=\"ring\""), 0u);
  Comparison lean = two_cases({20, 21, 22}, {23, 25, 12});
  for (StepFacts& s : lean.cases[0].runs[0].steps) s.memory = 1 << 21;
  EXPECT_EQ(count(to_html(lean, ""), "<tr class=\"take\"><td>mule</td>"), 1u)
      << "the case to take if speed is a tie";
}

TEST(Report, ShowsEveryAnswerInBold) {
  Comparison c = two_cases({20, 21, 22}, {30, 31, 32});
  for (StepFacts& s : c.cases[0].runs[0].steps) s.memory = 1 << 21;
  const std::string html = to_html(c, "");
  EXPECT_THAT(html,
              HasSubstr("<p><b>Take ox</b>: it is the fastest, 21 ms per step; mule takes "
                        "1.48 times as long. <b>If memory is short, take mule</b>: it"));
  EXPECT_EQ(count(html, "<tr class=\"take\">"), 2u);
}

// A style sheet hides columns and the ranges of times on a narrow screen.
TEST(Report, MarksTheRangesOfTimes) {
  EXPECT_THAT(to_html(five_cases(5), ""),
              HasSubstr("<td class=\"n\">11.0<span class=\"more\"> (10.0 .. 12.0)</span></td>"));
}

TEST(Report, SaysWhatRanAndHowBusyTheMachineWas) {
  Comparison c = five_cases(20);
  EXPECT_THAT(to_html(c, ""),
              AllOf(HasSubstr("<p>1,000 parameters in fp32, 512 tokens per step, 20 steps, 3 "
                              "repeats, 1 thread per rank.</p>"),
                    Not(HasSubstr("Load average"))));
  c.load = 2.34;
  EXPECT_THAT(to_html(c, ""), HasSubstr("Load average of the machine: 2.3 on "));
}

TEST(Report, NamesTheCasesWhoseActivationsAreUnknown) {
  Comparison c = five_cases(5);
  for (CaseResult& one : c.cases) one.runs[0].costs.activation = 1000;
  EXPECT_THAT(
      to_html(c, ""),
      AllOf(HasSubstr("The hatched rest is"), Not(HasSubstr("Activations are not declared"))));
  c.cases[1].runs[0].costs.activation = c.cases[3].runs[0].costs.activation = 0;
  EXPECT_THAT(to_html(c, ""), HasSubstr("are in the rest, in: b, d.</p>"));
}

TEST(Report, ShowsTheGates) {
  Comparison c = five_cases(5);
  c.gates = {{"tps>=2", "a", 1.25, false}};
  EXPECT_THAT(to_html(c, ""), HasSubstr("<td class=\"n\">1.25</td><td class=\"bad\">FAILED"));
}

TEST(Report, HasAMatrixOfPairs) {
  Comparison c = five_cases(5);
  for (size_t b = 1; b < 5; ++b) c.pairs.push_back({0, b, {}});
  const std::string html = to_html(c, "");
  EXPECT_EQ(count(html, "title=\"loss 0.0e+00"), 8u);  // each pair on both sides of the diagonal
}

}  // namespace
}  // namespace yoke::compare
