// Runs the real program on a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/metrics_rows.hpp"
#include "tests/cli/playground.hpp"
#include "tests/support/gpu.hpp"

namespace yoke::testing {
namespace {

using ::testing::HasSubstr;
using Words = std::vector<std::string>;

// GPU and CPU compute in fp32 for a few steps, so they differ only in the order of summation.
constexpr double kLossBound = 2e-6;

class TrainOnGpu : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { YOKE_REQUIRE_GPU(); }

  // Trains with the run folder `dir`. Returns the losses as they were logged.
  std::vector<double> train(const std::string& dir, const Words& more) const {
    Words words{
        "train", "run.toml", "run.dir=" + dir, std::string("parallel_backend=") + GetParam()};
    words.insert(words.end(), more.begin(), more.end());
    const SubprocessResult r = here_.yoke(words);
    EXPECT_EQ(r.ending.exit_code, 0) << r.err;
    return logged_losses(here_.folder() / dir);
  }
  // Returns the parameters that a run has saved after its last step.
  std::string weights(const std::string& dir) const {
    const std::string bytes =
        read_file(here_.folder() / (dir + "/checkpoints/step-00000004/model.safetensors"));
    EXPECT_FALSE(bytes.empty());
    return bytes;
  }
  std::string halfway(const std::string& dir) const {
    return "checkpoint.resume=" + here_.folder() / (dir + "/checkpoints/step-00000002");
  }
  // Expects that deterministic runs repeat and resume bit for bit. By default, the backward of
  // attention adds the parts of a query's gradient in any order, one part for each tile of keys.
  // With these sizes there are several tiles: a flash kernel takes at most a few hundred keys at a
  // time. The heads have a size for which LibTorch has such kernels.
  void expect_deterministic(const Words& more) const {
    const auto deterministic = [&](const std::string& dir, Words words) {
      words.insert(words.end(), more.begin(), more.end());
      words.insert(words.end(),
                   {"device=cuda",
                    "train.deterministic=true",
                    "precision.param=bf16",
                    "data.seq_len=1024",
                    "model.dim=256",
                    "model.heads=4",
                    "model.kv_heads=2",
                    "train.global_batch=8"});
      return train(dir, words);
    };
    const std::vector<double> all = deterministic("a", {});
    EXPECT_EQ(all, deterministic("b", {}));
    EXPECT_EQ(weights("a"), weights("b"));
    ASSERT_EQ(all.size(), 4u);
    const std::vector<double> rest{all.begin() + 2, all.end()};
    EXPECT_EQ(rest, deterministic("c", {halfway("a")}));
    EXPECT_EQ(weights("a"), weights("c"));
  }

  Playground here_;
};

void expect_close(const std::vector<double>& expected, const std::vector<double>& losses) {
  ASSERT_EQ(losses.size(), expected.size());
  for (size_t i = 0; i < losses.size(); ++i)
    EXPECT_NEAR(losses[i], expected[i], kLossBound * expected[i]) << "logged line " << i;
}

TEST_P(TrainOnGpu, LosesAsOnTheCpu) {
  expect_close(train("cpu", {"device=cpu"}), train("cuda", {"device=cuda"}));
}

TEST_P(TrainOnGpu, RepeatsItselfBitForBit) {
  EXPECT_EQ(train("a", {"device=cuda"}), train("b", {"device=cuda"}));
  EXPECT_EQ(weights("a"), weights("b"));
}

TEST_P(TrainOnGpu, DeterministicRunsRepeatAndResumeBitForBit) {
  expect_deterministic({});
}

TEST_P(TrainOnGpu, ResumesFromACheckpointOfTheCpuAndViceVersa) {
  const std::vector<double> all = train("cpu", {"device=cpu"});
  train("cuda", {"device=cuda"});
  const std::vector<double> rest{all.begin() + 2, all.end()};
  expect_close(rest, train("cpu-cuda", {"device=cuda", halfway("cpu")}));
  expect_close(rest, train("cuda-cpu", {"device=cpu", halfway("cuda")}));
}

INSTANTIATE_TEST_SUITE_P(
    Backends,
    TrainOnGpu,
    ::testing::Values("ptd", "deepspeed_stub", "megatron_compat", "nanotron_compat"),
    [](const auto& info) { return std::string(info.param); });

class CapturedOnGpu : public TrainOnGpu {};

TEST_P(CapturedOnGpu, IsTheSameRunBitForBit) {
  const Words words{"device=cuda", "precision.param=bf16", "train.steps=4"};
  Words captured = words;
  captured.push_back(std::string(GetParam()) + ".cuda_graph=true");
  EXPECT_EQ(train("plain", words), train("captured", captured));
  EXPECT_EQ(weights("plain"), weights("captured"));
}

TEST_P(CapturedOnGpu, DeterministicRunsRepeatAndResumeBitForBit) {
  expect_deterministic({std::string(GetParam()) + ".cuda_graph=true"});
}

INSTANTIATE_TEST_SUITE_P(Backends, CapturedOnGpu, ::testing::Values("ptd"), [](const auto& info) {
  return std::string(info.param);
});

TEST(RanksOnGpu, MoreThanThereAreDevicesAreRefused) {
  YOKE_REQUIRE_GPU();
  const Playground here;
  const SubprocessResult r = here.yoke({"train",
                                        "run.toml",
                                        "parallel_backend=ptd",
                                        "device=cuda",
                                        "train.global_batch=64",
                                        "--nproc",
                                        std::to_string(nvidia_driver().devices + 1)});
  EXPECT_EQ(r.ending.exit_code, 2);
  EXPECT_THAT(r.err, HasSubstr("device = cuda"));
  EXPECT_FALSE(std::filesystem::exists(here.folder() / "runs"));
}

}  // namespace
}  // namespace yoke::testing
