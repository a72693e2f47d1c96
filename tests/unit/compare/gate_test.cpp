#include "core/compare/gate.hpp"

#include <gmock/gmock.h>

#include "tests/unit/compare/made_up.hpp"
#include "yoke/error.hpp"

namespace yoke::compare {
namespace {

// Returns the lines about the results of the gate.
std::vector<std::string> lines_of(const Gate& gate, const Comparison& comparison) {
  std::vector<std::string> lines;
  for (const GateResult& result : measure(gate, comparison)) lines.push_back(result_text(result));
  return lines;
}

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Gate, ComparesRatiosWithTheFirstCase) {
  const Comparison c = two_cases({10}, {20});
  EXPECT_THAT(lines_of(parse_gate("tps>=0.5"), c),
              ElementsAre("gate tps>=0.5 holds for ox: 1", "gate tps>=0.5 holds for mule: 0.5"));
  EXPECT_THAT(lines_of(parse_gate("tps>=0.6"), c),
              ElementsAre("gate tps>=0.6 holds for ox: 1", "gate tps>=0.6 fails for mule: 0.5"));
  EXPECT_THAT(lines_of(parse_gate("step_ms<=1.9"), c), Contains(HasSubstr("fails for mule: 2")));
  EXPECT_THAT(lines_of(parse_gate("memory<=1"), c), Each(HasSubstr(" holds for ")));
}

TEST(Gate, HasAResultForEachCaseThatRan) {
  Comparison c = two_cases({10}, {20});
  c.cases[0].failure = "exit code 1";
  const std::vector<GateResult> results = measure(parse_gate("tps>=0.5"), c);
  ASSERT_EQ(results.size(), 1);
  EXPECT_EQ(results[0].case_name, "mule");
  EXPECT_EQ(results[0].value, 1);
  EXPECT_TRUE(results[0].passed);
}

TEST(Gate, BoundsDifferences) {
  Comparison c = two_cases({10}, {20});
  c.cases[1].agreement.loss = 1e-5;
  EXPECT_THAT(lines_of(parse_gate("loss<=1e-6"), c), Contains(HasSubstr("fails for mule: 1e-05")));
}

TEST(Gate, FailsForAMetricThatIsNotKnown) {
  Comparison c = two_cases({10}, {NAN});
  EXPECT_THAT(lines_of(parse_gate("tps>=0.1"), c),
              Contains(HasSubstr("fails for mule: not known")));
}

TEST(Gate, RefusesWhatIsNoCondition) {
  for (const char* text : {"tps", "tps>0.9", "tps>=", "tps>=fast", "tps=>1"}) {
    EXPECT_THROW(parse_gate(text), Error) << text;
  }
  try {
    parse_gate("tsp>=1");
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("did you mean 'tps'?"));
  }
}

}  // namespace
}  // namespace yoke::compare
