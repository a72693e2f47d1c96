// Checkpoints whose files take one rank longer than comm.timeout. Another launcher starts the
// ranks, so rank 0 chooses the checkpoint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/cli/playground.hpp"
#include "tests/cli/processes.hpp"
#include "yoke/text.hpp"

namespace yoke::testing {
namespace {

using ::testing::HasSubstr;

// The timeout leaves a busy machine enough time for everything else.
constexpr int kTimeout = 30, kSlowSeconds = 40;

// A run of two ranks, of which one has a slow call.
struct SlowRun {
  int slow_rank;
  std::string call;  // "" = none is slow
  std::string keys;
};

class SlowFiles : public ::testing::Test {
 protected:
  // Trains all runs at the same time, because they mostly wait, and expects that they succeed. The
  // backend communicates while it loads.
  void train(const std::vector<SlowRun>& runs) {
    std::vector<std::string> commands;
    for (const SlowRun& run : runs) {
      const int port = free_port();
      for (int rank = 0; rank < 2; ++rank) {
        std::string command =
            "env OMP_NUM_THREADS=1 MASTER_ADDR=127.0.0.1" +
            concat(" MASTER_PORT=", port, " OMPI_COMM_WORLD_SIZE=2") +
            concat(" OMPI_COMM_WORLD_RANK=", rank, " OMPI_COMM_WORLD_LOCAL_SIZE=2") +
            concat(" OMPI_COMM_WORLD_LOCAL_RANK=", rank);
        if (rank == run.slow_rank && !run.call.empty())
          command += concat(" LD_PRELOAD=" YOKE_SLOW_FILES " YOKE_SLOW_SECONDS=", kSlowSeconds) +
                     " YOKE_SLOW_CALL=" + run.call;
        commands.push_back(command + " timeout 500 " + Playground::program() + " train run.toml " +
                           "parallel_backend=deepspeed_stub deepspeed_stub.zero_stage=1 " +
                           concat("comm.timeout=", kTimeout, " ") + run.keys);
      }
    }
    const std::vector<Ended> ended = run_together(here_.folder(), commands);
    for (size_t i = 0; i < ended.size(); ++i) {
      const SlowRun& run = runs[i / 2];
      EXPECT_EQ(ended[i].exit_code, 0) << ended[i].text();
      if (!run.call.empty() && i % 2 == static_cast<size_t>(run.slow_rank)) {
        EXPECT_THAT(ended[i].err, HasSubstr(run.call + " is slow"));
      }
    }
  }
  bool saved(const std::string& run, const std::string& checkpoint) {
    return std::filesystem::exists(here_.folder() / ("runs/" + run + "/checkpoints/" + checkpoint));
  }

  Playground here_;
};

// A rank writes slowly, and rank 0 commits slowly.
TEST_F(SlowFiles, AreSaved) {
  train({{1, "fdatasync", "run.dir=runs/written"}, {0, "fsync", "run.dir=runs/committed"}});
  EXPECT_TRUE(saved("written", "step-00000004"));
  EXPECT_TRUE(saved("committed", "step-00000004"));
}

// Rank 0 verifies slowly, and a rank loads slowly.
TEST_F(SlowFiles, AreRead) {
  train({{0, "", "train.steps=2"}});
  train({{0, "pread", "checkpoint.resume=auto"},
         {1, "pread", "checkpoint.resume=runs/r/checkpoints/step-00000002 run.dir=runs/loaded"}});
  EXPECT_TRUE(saved("r", "step-00000004"));
  EXPECT_TRUE(saved("loaded", "step-00000004"));
}

}  // namespace
}  // namespace yoke::testing
