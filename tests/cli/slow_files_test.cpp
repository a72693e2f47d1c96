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
constexpr int kTimeout = 10, kSlowSeconds = 15;

class SlowFiles : public ::testing::Test {
 protected:
  // Trains on two ranks, of which one has a slow call, and expects that the run succeeds. The
  // backend communicates while it loads.
  void train(int slow_rank, const std::string& call, const std::string& keys) {
    const int port = free_port();
    std::vector<std::string> commands;
    for (int rank = 0; rank < 2; ++rank) {
      std::string command =
          "env OMP_NUM_THREADS=1 MASTER_ADDR=127.0.0.1" +
          concat(" MASTER_PORT=", port, " OMPI_COMM_WORLD_SIZE=2") +
          concat(" OMPI_COMM_WORLD_RANK=", rank, " OMPI_COMM_WORLD_LOCAL_SIZE=2") +
          concat(" OMPI_COMM_WORLD_LOCAL_RANK=", rank);
      if (rank == slow_rank)
        command += concat(" LD_PRELOAD=" YOKE_SLOW_FILES " YOKE_SLOW_SECONDS=", kSlowSeconds) +
                   " YOKE_SLOW_CALL=" + call;
      commands.push_back(command + " timeout 500 " + Playground::program() + " train run.toml " +
                         "parallel_backend=deepspeed_stub deepspeed_stub.zero_stage=1 " +
                         concat("comm.timeout=", kTimeout, " ") + keys);
    }
    const std::vector<Ended> ended = run_together(here_.folder(), commands);
    for (const Ended& rank : ended) EXPECT_EQ(rank.exit_code, 0) << rank.text();
    if (!call.empty())
      EXPECT_THAT(ended[static_cast<size_t>(slow_rank)].err, HasSubstr(call + " is slow"));
  }
  bool saved(const std::string& run, const std::string& checkpoint) {
    return std::filesystem::exists(here_.folder() / ("runs/" + run + "/checkpoints/" + checkpoint));
  }

  Playground here_;
};

TEST_F(SlowFiles, AreSavedByARank) {
  train(1, "fdatasync", "");
  EXPECT_TRUE(saved("r", "step-00000004"));
}

TEST_F(SlowFiles, AreCommittedByRank0) {
  train(0, "fsync", "");
  EXPECT_TRUE(saved("r", "step-00000004"));
}

TEST_F(SlowFiles, AreVerifiedByRank0) {
  train(0, "", "train.steps=2");
  train(0, "pread", "checkpoint.resume=auto");
  EXPECT_TRUE(saved("r", "step-00000004"));
}

TEST_F(SlowFiles, AreLoadedByARank) {
  train(0, "", "train.steps=2");
  train(1, "pread", "checkpoint.resume=runs/r/checkpoints/step-00000002 run.dir=runs/s");
  EXPECT_TRUE(saved("s", "step-00000004"));
}

}  // namespace
}  // namespace yoke::testing
