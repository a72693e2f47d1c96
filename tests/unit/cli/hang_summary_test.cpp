#include "core/cli/hang_summary.hpp"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temp_folder.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class HangSummary : public ::testing::Test {
 protected:
  HangSummary() { std::filesystem::create_directories(folder_ / "logs"); }
  void write(int rank, const std::string& text) {
    std::ofstream(folder_ / concat("logs/hang_rank_00", rank, ".json")) << text;
  }
  std::string report(
      int rank, int host, int collectives, const std::string& frame, int pp_rank = 0) {
    return concat(R"({"rank": )", rank, R"(, "host": "node)", host, R"(", "cause": "too long",)") +
           concat(R"("step": 7, "pp_rank": )", pp_rank, R"(, "collectives": )", collectives) +
           R"(, "communicators": [{"name": "dp_shard", "latest": ["all_gather as collective )" +
           concat(collectives, R"("]}], "threads": [{"frames": [)") +
           (frame.empty() ? "" : "\"" + frame + "\"") + "]}]}";
  }
  std::string summary() { return hang_summary(folder_.path().string()); }
  testing::TempFolder folder_;
};

TEST_F(HangSummary, IsEmptyWithoutReports) {
  EXPECT_EQ(summary(), "");
}

TEST_F(HangSummary, PutsTheRanksThatAreBehindFirst) {
  write(0, report(0, 0, 31, "wait()"));
  write(1, report(1, 0, 31, "wait()"));
  write(2, report(2, 1, 20, "read() (libc.so.6)"));
  write(3, report(3, 1, 31, "wait()"));
  EXPECT_EQ(summary(),
            "cause: too long\n"
            "  rank 2 (node1): step 7, 20 collectives, behind the others\n"
            "    last of dp_shard: all_gather as collective 20\n"
            "    its main thread:\n"
            "      read() (libc.so.6)\n"
            "  ranks 0, 1 (node0), 3 (node1): step 7, 31 collectives\n"
            "    last of dp_shard: all_gather as collective 31\n"
            "    its main thread:\n"
            "      wait()");
}

// The ranks of different pipeline stages issue different collectives.
TEST_F(HangSummary, ComparesOnlyRanksOfOnePipelineStage) {
  for (const int rank : {0, 1}) write(rank, report(rank, 0, 31, "wait()", 0));
  for (const int rank : {2, 3}) write(rank, report(rank, 1, 20, "wait()", 1));
  EXPECT_THAT(summary(),
              AllOf(HasSubstr("ranks 0, 1 (node0) of pp rank 0: step 7, 31 collectives\n"),
                    HasSubstr("ranks 2, 3 (node1) of pp rank 1: step 7, 20 collectives\n")));
  write(3, report(3, 1, 19, "read()", 1));
  EXPECT_THAT(
      summary(),
      StartsWith("cause: too long\n  rank 3 (node1) of pp rank 1: step 7, 19 collectives, behind "
                 "the others of pp rank 1\n"));
}

TEST_F(HangSummary, SaysThatAThreadDidNotAnswer) {
  write(0, report(0, 0, 31, ""));
  EXPECT_THAT(summary(), HasSubstr("its main thread: did not answer"));
}

TEST_F(HangSummary, RefusesADamagedReport) {
  for (const char* text : {"", "[]", "{\"rank\": 0", "{\"rank\": \"x\", \"threads\": 5}"}) {
    write(0, text);
    EXPECT_THROW(summary(), Error) << text;
  }
}

}  // namespace
}  // namespace yoke
