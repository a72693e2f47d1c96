#include "core/compare/results.hpp"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/unit/compare/made_up.hpp"

namespace yoke::compare {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST(ToJson, HasEveryCaseAndEveryStep) {
  Comparison c = five_cases(3);
  c.gates = {{"tps>=2", "a", 1, false}, {"loss<=1", "b", NAN, false}};
  const auto json = nlohmann::json::parse(to_json(c, "yoke compare", 0));
  EXPECT_EQ(json.at("cases").size(), 5u);
  EXPECT_EQ(json.at("cases")[1].at("verdict").at("level"), "L1");
  EXPECT_EQ(json.at("cases")[1].at("steps").size(), 3u);
  EXPECT_EQ(json.at("gates")[0],
            nlohmann::json({{"gate", "tps>=2"}, {"case", "a"}, {"value", 1.0}, {"passed", false}}));
  EXPECT_TRUE(json.at("gates")[1].at("value").is_null());
}

TEST(ToJson, JudgesCasesAndNotTheReference) {
  Comparison c = five_cases(3);
  c.reference->agreement.level = Level::kDiffers;  // its value is not used
  const auto json = nlohmann::json::parse(to_json(c, "", 0)).at("reference");
  EXPECT_TRUE(json.at("verdict").is_null());
  EXPECT_EQ(json.at("passed"), true);
}

TEST(ToJson, HasTheRecommendations) {
  const auto answers = nlohmann::json::parse(to_json(two_cases({20, 21, 22}, {10, 11, 12}), "", 0))
                           .at("recommendations");
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].at("take"), "mule");
  EXPECT_EQ(answers[0].at("tied"), nlohmann::json({"mule"}));
}

TEST(ToJson, HasTheCostsOfWhatCannotBeToldApart) {
  Comparison c = two_cases({20, 21, 22}, {23, 25, 12});
  for (StepFacts& s : c.cases[0].runs[0].steps) s.memory = 1 << 21;
  const auto answer = nlohmann::json::parse(to_json(c, "", 0)).at("recommendations")[0];
  EXPECT_TRUE(answer.at("take").is_null());
  EXPECT_EQ(answer.at("take_if_tied"), "mule");
  EXPECT_EQ(answer.at("costs").at("ox"),
            nlohmann::json({{"step_ms", 21.0}, {"memory", 2097152.0}, {"traffic", 4000.0}}));
  EXPECT_EQ(answer.at("costs").at("mule").at("memory"), 1048576.0);
}

TEST(ToCsv, HasOnePlainNumberInAColumn) {
  Comparison c = five_cases(3);
  c.cases[0].spec.name = "a,b";
  c.cases[1].failure = "exit code 1";
  const std::vector<std::string> lines = lines_of(to_csv(c));
  ASSERT_EQ(lines.size(), 7u);
  EXPECT_EQ(lines[0],
            "case,ranks,backend,layout,passed,level,required_level,loss_difference,"
            "grad_norm_difference,parameter_difference,step_ms_median,step_ms_min,step_ms_max,"
            "tokens_per_second,speed_relative_to_first,peak_memory_bytes,traffic_bytes,reason");
  EXPECT_EQ(lines[1], "reference,2,ox,dp_degree 2,true,,,,,,10,10,10,51200,,1048576,4000,");
  EXPECT_EQ(lines[2],
            "\"a,b\",2,ox,dp_degree 2,true,L1,L1,0,0,0,11,10,12,46545.4545,1,1048576,4000,");
  EXPECT_EQ(lines[3], "b,,,,false,,,,,,,,,,,,,exit code 1");
}

TEST(ToMarkdown, IsTheTable) {
  EXPECT_EQ(lines_of(to_markdown(five_cases(3))).size(),
            8u);  // header, rule, reference, five cases
}

}  // namespace
}  // namespace yoke::compare
