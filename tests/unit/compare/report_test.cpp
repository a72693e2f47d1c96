#include "core/compare/report.hpp"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "core/compare/summary.hpp"
#include "tests/unit/compare/made_up.hpp"

namespace yoke::compare {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Comparison five_cases(int64_t steps) {
  Comparison c;
  c.plan.config = "run <1>.toml";
  c.plan.steps = steps;
  c.plan.tokens_per_step = 512;
  c.reference = made_up_case("reference", {10}, steps);
  for (const char* name : {"a", "b", "c", "d", "e"})
    c.cases.push_back(made_up_case(name, {10, 11, 12}, steps));
  return c;
}

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

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

TEST(Summary, IsJsonMarkdownAndCsv) {
  Comparison c = five_cases(3);
  c.cases[0].spec.name = "a,b";
  const auto json = nlohmann::json::parse(to_json(c, "yoke compare", 0));
  EXPECT_EQ(json.at("cases").size(), 5u);
  EXPECT_EQ(json.at("cases")[1].at("verdict").at("level"), "L1");
  EXPECT_EQ(json.at("cases")[1].at("steps").size(), 3u);
  EXPECT_THAT(to_csv(c), HasSubstr("\"a,b\",dp_degree 2,L1,"));
  EXPECT_EQ(count(to_markdown(c), "\n"), 8u);  // header, rule, reference, five cases
}

}  // namespace
}  // namespace yoke::compare
