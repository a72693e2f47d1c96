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
  EXPECT_EQ(count(html, "<svg"), 5u);
  EXPECT_EQ(count(html, "<svg"), count(html, "</svg>"));
  EXPECT_EQ(count(html, "<polyline"),
            6u + 5u + 5u);  // losses, and two differences from the reference
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

}  // namespace
}  // namespace yoke::compare
