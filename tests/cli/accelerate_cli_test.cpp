// Imports configs of Accelerate and DeepSpeed with the real program and trains with the result.
// Also tests that Accelerate's environment variables choose the strategy.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/playground.hpp"

namespace yoke {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::Playground;

constexpr const char* kHsdp =
    "distributed_type: FSDP\nnum_processes: 4\nmixed_precision: 'no'\nuse_cpu: true\n"
    "fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: false, fsdp_offload_params: true}\n"
    "parallelism_config: {parallelism_config_dp_replicate_size: 2, "
    "parallelism_config_dp_shard_size: "
    "2}\n";

TEST(ConfigImport, PrintsARunFileWithACommentForWhatHasNoEquivalent) {
  const Playground p;
  p.folder().write("hsdp.yaml", kHsdp);
  const SubprocessResult r = p.yoke({"config", "import", "hsdp.yaml"});
  EXPECT_EQ(r.ending.exit_code, 0) << r.err;
  for (const char* line :
       {"# hsdp.yaml, as accelerate_compat reads it; for 4 rank(s)\n",
        "\nparallel_backend = \"ptd\" ",
        "\ndp_degree = 2 ",
        "# hsdp.yaml:6: parallelism_config.parallelism_config_dp_replicate_size = 2\n",
        "\ndp_shards = 2 ",
        "\nprecision.param = \"fp32\" ",
        "\nptd.reshard_after_forward = false ",
        "\n# hsdp.yaml:4: use_cpu = true; no effect here",
        "\n# refused: hsdp.yaml:5: fsdp_config.fsdp_offload_params = true"})
    EXPECT_THAT(r.out, HasSubstr(line));
  EXPECT_THAT(r.out, Not(HasSubstr("num_processes"))) << "it is what the degrees say";

  p.folder().write("ddp.yaml", "distributed_type: MULTI_CPU\nnum_processes: 2\n");
  EXPECT_THAT(
      p.yoke({"config", "import", "ddp.yaml"}).out,
      HasSubstr("\ndp_degree = 2                                    # ddp.yaml:2: num_proc"));

  // The output is a run file: with the missing keys added, it trains.
  p.folder().write("imported.toml",
                   r.out +
                       "model.preset = \"tiny\"\nmodel.layers = 1\ndata.path = \"text.txt\"\n"
                       "data.seq_len = 32\ntrain.steps = 2\ntrain.global_batch = 4\n");
  const SubprocessResult run = p.yoke({"train", "imported.toml", "--virtual", "4"});
  EXPECT_EQ(run.ending.exit_code, 0) << run.out << run.err;
  EXPECT_THAT(run.out, HasSubstr("ptd: HSDP, 2 replicas of 2 shards"));
}

// Writes imported.toml, the lines of an import with a small model, and trains it.
SubprocessResult train_imported(const Playground& p, const std::string& lines) {
  p.folder().write("imported.toml",
                   lines +
                       "model.preset = \"tiny\"\nmodel.layers = 1\ndata.path = \"text.txt\"\n"
                       "data.seq_len = 32\ntrain.steps = 2\n");
  return p.yoke({"train", "imported.toml", "--virtual", "2"});
}

TEST(ConfigImport, TranslatesFp8) {
  const Playground p;
  p.folder().write("fp8.yaml",
                   "distributed_type: FSDP\nnum_processes: 2\nmixed_precision: fp8\n"
                   "fsdp_config: {fsdp_version: 2}\n"
                   "fp8_config: {backend: AO, enable_fsdp_float8_all_gather: true}\n");
  const SubprocessResult r = p.yoke({"config", "import", "fp8.yaml"});
  EXPECT_EQ(r.ending.exit_code, 0) << r.err;
  for (const char* line : {"\nprecision.param = \"bf16\" ",
                           "\nprecision.product = \"fp8\" ",
                           "\nprecision.fp8_recipe = \"tensorwise\" ",
                           "\nprecision.fp8_skip = [\"layers.0.self_attn.q_proj\", \"lm_head\"]",
                           "\nptd.fp8_gather = true "})
    EXPECT_THAT(r.out, HasSubstr(line));
  const SubprocessResult run = train_imported(p, r.out + "train.global_batch = 4\n");
  EXPECT_EQ(run.ending.exit_code, 0) << run.out << run.err;
  EXPECT_THAT(run.out,
              HasSubstr("bf16, products in fp8 (tensorwise) except those of "
                        "layers.0.self_attn.q_proj, lm_head, gradients reduced in fp32"));
  const SubprocessResult plain = p.yoke({"train",
                                         "run.toml",
                                         "parallel_backend=accelerate_compat",
                                         "accelerate_compat.config_file=fp8.yaml",
                                         "precision.param=bf16",
                                         "--virtual",
                                         "2"});
  EXPECT_EQ(plain.ending.exit_code, 2) << plain.err;
  EXPECT_THAT(plain.err, HasSubstr("means precision.product = \"fp8\", but the run has"));
}

TEST(ConfigImport, ReadsTheConfigsOfWhateverBackendDeclaresTheName) {
  const Playground p;
  p.folder().write("ds.json",
                   R"({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2,
                       "gradient_accumulation_steps": 2, "zero_optimization": {"stage": 2},
                       "optimizer": {"type": "Adam", "params": {"adam_w_mode": false,
                                                                "bias_correction": false}}})");
  const SubprocessResult r = p.yoke({"config", "import", "ds.json"});
  if (r.err.find("matches the patterns of no backend") != std::string::npos) GTEST_SKIP() << r.err;
  EXPECT_EQ(r.ending.exit_code, 0) << r.err;
  for (const char* line : {"# ds.json, as deepspeed_stub reads it; for 2 rank(s)\n",
                           "\nparallel_backend = \"deepspeed_stub\" ",
                           "\ndeepspeed_stub.zero_stage = 2 ",
                           "\ntrain.global_batch = 8 ",
                           "\ntrain.micro_batch = 2 ",
                           "\ntrain.optimizer = \"adam\" ",
                           "\ntrain.bias_correction = false ",
                           "\ndp_shards = 2 "})
    EXPECT_THAT(r.out, HasSubstr(line));
  const SubprocessResult run = train_imported(p, r.out);
  EXPECT_EQ(run.ending.exit_code, 0) << run.out << run.err;
}

TEST(ConfigImport, RefusesWhatNobodyReads) {
  const Playground p;
  p.folder().write("a.ini", "x");
  p.folder().write("bad.yaml", "distributed_type: [\n");
  const SubprocessResult unknown = p.yoke({"config", "import", "a.ini"});
  EXPECT_EQ(unknown.ending.exit_code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("the name of a.ini matches the patterns of no backend"));
  EXPECT_THAT(unknown.err, HasSubstr("accelerate_compat: *.yaml, *.yml"));
  const SubprocessResult bad = p.yoke({"config", "import", "bad.yaml"});
  EXPECT_EQ(bad.ending.exit_code, 2);
  EXPECT_THAT(bad.err, HasSubstr("bad.yaml, line 2"));
  EXPECT_EQ(p.yoke({"config", "import", "missing.yaml"}).ending.exit_code, 2);
}

TEST(AccelerateVariables, ChooseTheStrategy) {
  const Playground p;
  const std::vector<std::string> train = {
      "train", "run.toml", "--virtual", "2", "parallel_backend=accelerate_compat"};
  const SubprocessResult ddp = p.yoke(train);
  EXPECT_EQ(ddp.ending.exit_code, 0) << ddp.err;
  EXPECT_THAT(ddp.out, HasSubstr("DDP by c10d::Reducer over 2 ranks"));
  const std::vector<std::string> variables = {"ACCELERATE_USE_FSDP=true", "FSDP_VERSION=2"};
  const SubprocessResult fsdp = p.yoke(train, variables);
  EXPECT_EQ(fsdp.ending.exit_code, 0) << fsdp.err;
  EXPECT_THAT(fsdp.out, HasSubstr("ptd: FSDP over 2 ranks"));
  std::vector<std::string> deaf = train;
  deaf.push_back("accelerate_compat.environment=");
  EXPECT_THAT(p.yoke(deaf, variables).out, HasSubstr("DDP by c10d::Reducer"));
}

}  // namespace
}  // namespace yoke
