#include "core/run/run_place.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "core/base/exit_code.hpp"
#include "tests/support/temp_folder.hpp"

namespace yoke {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

TEST(OccupiedFolder, IsRemovedIfNothingWasWrittenToIt) {
  const testing::TempFolder folder;
  const std::string run = folder / "runs/a";
  {
    const OccupiedFolder occupied(run);
    EXPECT_TRUE(fs::is_directory(run));
  }
  EXPECT_FALSE(fs::exists(run));
  {
    const OccupiedFolder occupied(run);
    std::ofstream(run + "/metrics.jsonl").put('x');
  }
  EXPECT_TRUE(fs::exists(run + "/metrics.jsonl"));
  EXPECT_TRUE(fs::exists(run + "/.lock"));
}

TEST(OccupiedFolder, IsRefusedWithTheNameOfItsHolder) {
  const testing::TempFolder folder;
  const std::string run = folder / "a";
  const OccupiedFolder occupied(run);
  try {
    const OccupiedFolder second(run);
    ADD_FAILURE() << "nothing was refused";
  } catch (const Refused& e) {
    EXPECT_EQ(e.exit_code(), kExitUsage);
    EXPECT_THAT(e.what(), HasSubstr(", process " + std::to_string(::getpid()) + ")"));
  }
  EXPECT_TRUE(fs::is_directory(run));
}

}  // namespace
}  // namespace yoke
