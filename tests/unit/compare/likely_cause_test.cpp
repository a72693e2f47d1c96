#include "core/compare/likely_cause.hpp"

#include <gmock/gmock.h>

#include "tests/unit/compare/made_up.hpp"

namespace yoke::compare {
namespace {

using ::testing::HasSubstr;

TEST(LikelyCause, ReportsWhatIsKnownIfNoRuleApplies) {
  const RunFacts a = made_up_run(5), b = made_up_run(5, 1.5);
  const LikelyCause cause = find_likely_cause(a, b, compare_runs(a, b, required_level(a, b)));
  EXPECT_EQ(cause.id, "unknown");
  EXPECT_THAT(cause.explanation, HasSubstr("loss differs by 0.5"));
}

}  // namespace
}  // namespace yoke::compare
