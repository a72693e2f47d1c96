#include "core/compare/summary.hpp"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/unit/compare/made_up.hpp"

namespace yoke::compare {
namespace {

using ::testing::HasSubstr;

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

TEST(SpeedText, NamesTheFastestIfRangesAreApart) {
  EXPECT_THAT(speed_text(two_cases({20, 21, 22}, {10, 11, 12})),
              HasSubstr("fastest: mule, 1.91 times as fast as ox (1.67 .. 2.20)"));
}

TEST(SpeedText, NamesNobodyIfRangesOverlap) {
  EXPECT_THAT(speed_text(two_cases({10, 12, 14}, {14, 15, 16})),
              HasSubstr("ranges of ox and mule overlap"));
}

TEST(SpeedText, NamesNobodyFromFewRepeats) {
  EXPECT_THAT(speed_text(two_cases({10, 10}, {50, 50})), HasSubstr("--repeats 3 or more"));
}

}  // namespace
}  // namespace yoke::compare
