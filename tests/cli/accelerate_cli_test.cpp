// Imports configs of Accelerate and DeepSpeed with the real program and trains with the result.
// Also tests that Accelerate's environment variables choose the strategy.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

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

TEST(ConfigImport, WritesNothingIfAKeyCannotBeHonoured) {
  const Playground p;
  p.folder().write("hsdp.yaml", kHsdp);
  p.folder().write("ds.json",
                   R"({"zero_optimization": {"stage": 2, "zero_quantized_weights": true, "stge": 1},
                       "amp": {"enabled": true}})");
  const std::pair<const char*, std::vector<const char*>> cases[] = {
      {"hsdp.yaml",
       {"yoke: hsdp.yaml has a key that cannot be honoured, so no run file",
        "--partial\n  hsdp.yaml:5: fsdp_config.fsdp_offload_params = true; allowed: false"}},
      {"ds.json",
       {"ds.json has 3 keys that cannot be honoured",
        "\n  ds.json:1: zero_optimization.zero_quantized_weights = true; allowed: false",
        "\n  ds.json:1: zero_optimization.stge = 1",
        "\n  ds.json:2: amp.enabled = true; allowed: false"}}};
  for (const auto& [file, messages] : cases) {
    const SubprocessResult r = p.yoke({"config", "import", file});
    if (r.err.find("matches the patterns of no backend") != std::string::npos) continue;
    EXPECT_EQ(r.ending.exit_code, 2) << file;
    EXPECT_EQ(r.out, "") << file;
    for (const char* message : messages) EXPECT_THAT(r.err, HasSubstr(message));
  }
}

constexpr const char* kAccumulates =
    R"({"gradient_accumulation_steps": 4, "zero_optimization": {"stage": 2}})";

TEST(ConfigImport, SaysThatItsOutputWasLost) {
  if (!std::ifstream("/dev/full")) GTEST_SKIP() << "this system has no /dev/full";
  const Playground p;
  p.folder().write("ds.json", kAccumulates);
  if (p.yoke({"config", "import", "ds.json"}).ending.exit_code != 0)
    GTEST_SKIP() << "no backend reads the file";
  const SubprocessResult r =
      run_subprocess({"/bin/sh",
                      "-c",
                      "cd " + p.folder().path().string() + "; " + Playground::program() +
                          " config import ds.json > /dev/full"});
  EXPECT_EQ(r.ending.exit_code, 1);
  EXPECT_THAT(r.err, HasSubstr("yoke: the output could not be written"));
}

TEST(ConfigImport, TakesAModelOfHuggingFace) {
  const Playground p;
  p.folder().write("ds.json", kAccumulates);
  p.folder().write("config.json",
                   R"({"model_type": "qwen2", "hidden_size": 64, "num_hidden_layers": 2,
                       "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256,
                       "intermediate_size": 128, "max_position_embeddings": 128})");
  const SubprocessResult r = p.yoke({"config",
                                     "import",
                                     "ds.json",
                                     "model.config=config.json",
                                     "data.path=text.txt",
                                     "data.seq_len=32",
                                     "train.steps=1"});
  ASSERT_EQ(r.ending.exit_code, 0) << r.err;
  p.folder().write("imported.toml", r.out);
  const SubprocessResult trained = p.yoke({"train", "imported.toml", "metrics.every=1"});
  EXPECT_EQ(trained.ending.exit_code, 0) << trained.err;
  EXPECT_THAT(trained.out, HasSubstr("step: 1 ")) << trained.err;

  const SubprocessResult wrong = p.yoke({"config", "import", "ds.json", "model.preset=tny"});
  EXPECT_EQ(wrong.ending.exit_code, 2) << wrong.err;
  EXPECT_THAT(wrong.err, HasSubstr("model.preset = \"tny\"; allowed: "));
}

// A number of micro-batches is a micro-batch of one global batch only.
TEST(ConfigImport, WritesTheBatchOfWhichAccumulationIsAPart) {
  const Playground p;
  p.folder().write("ds.json", kAccumulates);
  const SubprocessResult by_default = p.yoke({"config", "import", "ds.json"});
  EXPECT_THAT(by_default.out, HasSubstr("\ntrain.micro_batch = 4 "));
  EXPECT_THAT(by_default.out, HasSubstr("\ntrain.global_batch = 16 "));
  EXPECT_THAT(by_default.err, HasSubstr("for one, with train.global_batch = 16; for two ranks"));
  EXPECT_EQ(p.yoke({"config", "import", "ds.json", "dp_shards=2"}).err, "");
  const std::string given = p.yoke({"config", "import", "ds.json", "train.global_batch=8"}).out;
  EXPECT_THAT(given, HasSubstr("\ntrain.micro_batch = 2 "));
  EXPECT_THAT(given, Not(HasSubstr("train.global_batch = 16")));
}

TEST(ConfigImport, PrintsARunFileWithACommentForWhatHasNoEquivalent) {
  const Playground p;
  p.folder().write("hsdp.yaml", kHsdp);
  const SubprocessResult r = p.yoke({"config", "import", "--partial", "hsdp.yaml"});
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
  EXPECT_THAT(r.out, HasSubstr("\n# hsdp.yaml:2: num_processes = 4: needs no line of its own ("))
      << "it is what the degrees say";

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
                                         "precision.product=param",
                                         "--virtual",
                                         "2"});
  EXPECT_EQ(plain.ending.exit_code, 2) << plain.err;
  EXPECT_THAT(
      plain.err,
      HasSubstr("precision.fp8_recipe = \"tensorwise\" (fp8.yaml:3: mixed_precision) has no "
                "effect with precision.product = \"param\" (command line)"));
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

constexpr const char* kAuto =
    R"({"zero_optimization": {"stage": 3, "reduce_bucket_size": "auto",
                              "stage3_prefetch_bucket_size": "auto",
                              "stage3_param_persistence_threshold": "auto"}})";

TEST(ConfigImport, PrefersTheCommandLineToTheDefaultsOfTheFile) {
  const Playground p;
  p.folder().write("ds.json", R"({"optimizer": {"type": "AdamW", "params": {"lr": 0.01}}})");
  const SubprocessResult r = p.yoke({"config", "import", "ds.json", "train.eps=1e-5"});
  if (r.err.find("matches the patterns of no backend") != std::string::npos) GTEST_SKIP() << r.err;
  EXPECT_EQ(r.ending.exit_code, 0) << r.err;
  EXPECT_THAT(r.out, HasSubstr("\ntrain.eps = 1e-5 "));
  EXPECT_THAT(r.out, Not(HasSubstr("\ntrain.eps = 1e-8 ")));
  // A value that the file itself gives is refused instead.
  const SubprocessResult other = p.yoke({"config", "import", "ds.json", "train.lr=0.02"});
  EXPECT_EQ(other.ending.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("ds.json:1: optimizer.params.lr = 0.01; allowed: 0.02"));
}

TEST(ConfigImport, PrintsALineOnceThatTwoKeysMean) {
  const Playground p;
  p.folder().write("ds.json",
                   R"({"communication_data_type": "fp32", "zero_optimization": {"stage": 1},
                       "data_types": {"grad_accum_dtype": "fp32"}})");
  const SubprocessResult r = p.yoke({"config", "import", "ds.json"});
  if (r.err.find("matches the patterns of no backend") != std::string::npos) GTEST_SKIP() << r.err;
  EXPECT_EQ(r.ending.exit_code, 0) << r.err;
  const size_t first = r.out.find("precision.reduce = \"fp32\"");
  ASSERT_NE(first, std::string::npos) << r.out;
  EXPECT_THAT(r.out,
              HasSubstr("\n# ds.json:2: data_types.grad_accum_dtype = \"fp32\" means "
                        "precision.reduce = \"fp32\"\n"));
  EXPECT_EQ(r.out.find("\nprecision.reduce", first + 1), std::string::npos) << r.out;
}

TEST(ConfigImport, NeedsTheModelForSizesThatDependOnIt) {
  const Playground p;
  p.folder().write("ds.json", kAuto);
  const SubprocessResult r = p.yoke({"config", "import", "ds.json"});
  if (r.err.find("matches the patterns of no backend") != std::string::npos) GTEST_SKIP() << r.err;
  EXPECT_EQ(r.ending.exit_code, 2);
  EXPECT_EQ(r.out, "");
  EXPECT_THAT(r.err, HasSubstr("ds.json has 3 keys that cannot be honoured"));
  EXPECT_THAT(
      r.err,
      HasSubstr("\n  ds.json:1: zero_optimization.reduce_bucket_size = \"auto\"; it depends on "
                "the model; add that to the command"));
  const SubprocessResult tiny = p.yoke({"config", "import", "ds.json", "model.preset=tiny"});
  EXPECT_EQ(tiny.ending.exit_code, 0) << tiny.err;
  EXPECT_THAT(tiny.out, HasSubstr("\ndeepspeed_stub.reduce_bucket_size = 4096 "));
  EXPECT_THAT(tiny.out, HasSubstr("\ndeepspeed_stub.stage3_param_persistence_threshold = 640 "));
}

// The engine of a run computes the sizes again, on every rank.
TEST(AutoSizes, TrainWithTheCollectivesOfTheNumbersThatTheyMean) {
  const Playground p;
  p.folder().write("auto.json", kAuto);
  p.folder().write("numbers.json",
                   R"({"zero_optimization": {"stage": 3, "reduce_bucket_size": 4096,
                                             "stage3_prefetch_bucket_size": 3686,
                                             "stage3_param_persistence_threshold": 640}})");
  p.folder().write("defaults.json", R"({"zero_optimization": {"stage": 3}})");
  const auto collectives = [&](const std::string& name) {
    const SubprocessResult r = p.yoke({"train",
                                       "run.toml",
                                       "--virtual",
                                       "2",
                                       "parallel_backend=deepspeed_stub",
                                       "deepspeed_stub.config_file=" + name + ".json",
                                       "run.dir=" + name});
    EXPECT_EQ(r.ending.exit_code, 0) << r.err;
    std::ifstream in(p.folder() / (name + "/metrics.jsonl"));
    std::string found;
    for (std::string line; std::getline(in, line);) {
      const size_t at = line.find("\"calls\"");
      if (at != std::string::npos)
        found += line.substr(at, line.find_first_of(",}", at) - at) + " ";
    }
    return found;
  };
  const std::string ours = collectives("auto");
  EXPECT_EQ(ours, collectives("numbers"));
  EXPECT_NE(ours, collectives("defaults"));
}

TEST(ConfigImport, TranslatesDeepSpeedForTheBackendThatHasIt) {
  const Playground p;
  const std::string head = "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config:\n";
  p.folder().write("inline.yaml", head + "  zero_stage: 2\n  gradient_clipping: 0.5\n");
  p.folder().write("file.yaml", head + "  deepspeed_config_file: ds.json\n");
  p.folder().write("ds.json",
                   R"({"bf16": {"enabled": true}, "gradient_clipping": 0.25,
                       "zero_optimization": {"stage": 3}})");
  const SubprocessResult from_keys = p.yoke({"config", "import", "inline.yaml"});
  const SubprocessResult from_file = p.yoke({"config", "import", "file.yaml"});
  if (from_file.err.find("no backend 'deepspeed_stub'") != std::string::npos)
    GTEST_SKIP() << from_file.err;
  for (const SubprocessResult& r : {from_keys, from_file}) {
    EXPECT_EQ(r.ending.exit_code, 0) << r.err;
    EXPECT_THAT(r.out, HasSubstr("\nparallel_backend = \"deepspeed_stub\" "));
    EXPECT_THAT(r.out, HasSubstr("\ndp_shards = 2 "));
    const SubprocessResult run = train_imported(p, r.out + "train.global_batch = 4\n");
    EXPECT_EQ(run.ending.exit_code, 0) << run.out << run.err;
  }
  EXPECT_THAT(from_keys.out, HasSubstr("\ntrain.clip = 0.5 "));
  EXPECT_THAT(from_keys.out, HasSubstr("\ndeepspeed_stub.zero_stage = 2 "));
  EXPECT_THAT(from_file.out, HasSubstr("# ds.json, as deepspeed_stub reads it; for 2 rank(s)\n"));
  EXPECT_THAT(from_file.out, HasSubstr("\ntrain.clip = 0.25 "));
  EXPECT_THAT(from_file.out, HasSubstr("\nprecision.param = \"bf16\" "));
  EXPECT_THAT(from_file.out, HasSubstr("\ndeepspeed_stub.zero_stage = 3 "));
  EXPECT_THAT(from_file.out, Not(HasSubstr("\ndeepspeed_stub.config_file")));
}

TEST(ConfigImport, ChecksTheFileThatAFileNames) {
  const Playground p;
  p.folder().write("file.yaml",
                   "distributed_type: DEEPSPEED\nnum_processes: 2\nmixed_precision: bf16\n"
                   "deepspeed_config: {deepspeed_config_file: ds.json}\n");
  const SubprocessResult missing = p.yoke({"config", "import", "file.yaml"});
  EXPECT_EQ(missing.ending.exit_code, 2);
  EXPECT_THAT(missing.err, HasSubstr("deepspeed_config_file = ds.json: there is no such file"));
  // The number of ranks and the dtype of the YAML file do not fit the JSON file.
  p.folder().write("ds.json", R"({"bf16": {"enabled": false}, "zero_optimization": {"stage": 0}})");
  const SubprocessResult r = p.yoke({"config", "import", "file.yaml"});
  EXPECT_EQ(r.ending.exit_code, 2);
  EXPECT_EQ(r.out, "");
  EXPECT_THAT(r.err, HasSubstr("file.yaml has 2 keys that cannot be honoured"));
  EXPECT_THAT(r.err,
              HasSubstr("\n  ds.json:1: zero_optimization.stage = 0; allowed: 1, 2, 3; the run has "
                        "dp_shards = 2"));
  EXPECT_THAT(r.err, HasSubstr("\n  ds.json:1: bf16.enabled = false; allowed: true"));
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
