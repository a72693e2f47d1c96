// Tests `yoke doctor` with the real program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "tests/cli/playground.hpp"

namespace yoke::testing {
namespace {

using ::testing::HasSubstr;

TEST(Doctor, FindsNoProblemHereAndListsWhatItFound) {
  const Playground here;
  const SubprocessResult r = here.yoke({"doctor", "--json"});
  EXPECT_EQ(r.ending.exit_code, 0) << r.out;
  std::map<std::string, std::string> found;
  for (const auto& row : nlohmann::json::parse(r.out)) found[row.at("what")] = row.at("found");
  EXPECT_THAT(found["LibTorch"], HasSubstr("torch-2."));
  EXPECT_THAT(found["backends"], HasSubstr("serial"));
}

TEST(Doctor, GivesCauseAndCommandForWhatIsBroken) {
  const Playground here;
  const SubprocessResult r = here.yoke({"doctor"}, {"MASTER_ADDR=127.0.0.1", "TMPDIR=/no/such"});
  EXPECT_EQ(r.ending.exit_code, 1);
  EXPECT_THAT(r.out, HasSubstr("MASTER_PORT is not set, but MASTER_ADDR is"));
  EXPECT_THAT(r.out, HasSubstr("try: export MASTER_PORT="));
  EXPECT_THAT(r.out, HasSubstr("cannot create the folder /no/such/yoke-"));
}

}  // namespace
}  // namespace yoke::testing
