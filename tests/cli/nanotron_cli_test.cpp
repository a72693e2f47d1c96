// Imports YAML files of nanotron with the real program, and trains with the result.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/cli/playground.hpp"

namespace yoke {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::Playground;

constexpr const char* kFile = R"(general: {project: tiny, seed: 3}
parallelism: {dp: 2, tp: 1, pp: 1}
model:
  dtype: float32
  model_config:
    hidden_size: 32
    num_hidden_layers: 1
    num_attention_heads: 2
    intermediate_size: 64
    vocab_size: 256
tokens:
  sequence_length: 16
  train_steps: 4
  micro_batch_size: 2
  batch_accumulation_per_replica: 2
optimizer:
  zero_stage: 1
  accumulate_grad_in_fp32: false
  weight_decay: 0.01
  clip_grad: 1.0
  optimizer_factory: {name: adamW, adam_beta1: 0.9, adam_beta2: 0.95, adam_eps: 1.0e-08}
  learning_rate_scheduler:
    learning_rate: 0.001
    lr_warmup_steps: 1
    lr_warmup_style: linear
    lr_decay_style: cosine
    min_decay_lr: 0.0001
data_stages:
  - name: a
    start_training_step: 1
    data: {seed: 1, num_loading_workers: 4, dataset: {hf_dataset_or_datasets: stas/openwebtext}}
)";

TEST(NanotronImport, TranslatesFoldersOfDatatrove) {
  const Playground p;
  for (const char* name : {"a/0.ds", "b/0.ds"}) {
    p.folder().write(name, std::string(2000, '\1'));
    p.folder().write(std::string(name) + ".metadata", "gpt2|2\n1000");
  }
  std::string file = kFile;
  const std::string dataset = "{hf_dataset_or_datasets: stas/openwebtext}";
  file.replace(file.find(dataset),
               dataset.size(),
               "{dataset_folder: [a, b], dataset_weights: [0.75, 0.25]}");
  p.folder().write("n.yaml", file);
  const SubprocessResult r = p.yoke({"config", "import", "n.yaml"});
  EXPECT_EQ(r.ending.exit_code, 0) << r.err;
  for (const char* line : {"\ndata.path = [\"a\", \"b\"] ",
                           "\ndata.order = \"nanotron\" ",
                           "\ndata.weights = [0.75, 0.25] ",
                           "\nseed = 3 "})
    EXPECT_THAT(r.out, HasSubstr(line));
  p.folder().write("imported.toml", r.out);
  // The ids of these files are 257.
  const SubprocessResult run =
      p.yoke({"train", "imported.toml", "--virtual", "2", "model.vocab=300"});
  EXPECT_EQ(run.ending.exit_code, 0) << run.out << run.err;
  EXPECT_THAT(run.out, HasSubstr("mixture of 2 sources"));
}

TEST(NanotronImport, PrintsARunFileThatTrains) {
  const Playground p;
  p.folder().write("n.yaml", kFile);
  // Two backends read YAML files. The keys of this one are those of nanotron.
  const SubprocessResult r = p.yoke({"config", "import", "n.yaml", "data.path=text.txt"});
  EXPECT_EQ(r.ending.exit_code, 0) << r.err;
  for (const char* line :
       {"# n.yaml, as nanotron_compat reads it; for 2 rank(s)\n",
        "\nparallel_backend = \"nanotron_compat\" ",
        "\ndp_shards = 2 ",
        "\nnanotron_compat.zero_stage = 1 ",
        "\nnanotron_compat.loss = \"mean_of_means\" ",
        "\nmodel.kv_heads = 2 ",
        "\ntrain.global_batch = 8 ",
        "\ntrain.decay = \"all\" ",
        "\nlr_schedule.first_step = 0 ",
        "\ndata.path = \"text.txt\" ",
        "\n# n.yaml:31: data_stages[].data.num_loading_workers = 4; no effect",
        "hf_dataset_or_datasets = stas/openwebtext; text of the Hub is not read; set data.path"})
    EXPECT_THAT(r.out, HasSubstr(line));
  EXPECT_THAT(r.out, Not(HasSubstr("# refused")));
  p.folder().write("imported.toml", r.out);
  const SubprocessResult run =
      p.yoke({"train", "imported.toml", "--virtual", "2", "nanotron_compat.config=n.yaml"});
  EXPECT_EQ(run.ending.exit_code, 0) << run.out << run.err;
  EXPECT_THAT(run.out, HasSubstr("nanotron_compat: ZeRO stage 1 over 2 rank(s), 1 bucket(s)"));

  // A run that differs from the file is refused: by the backend, and where only the host knows the
  // value, by the host.
  const SubprocessResult other = p.yoke({"train",
                                         "imported.toml",
                                         "--virtual",
                                         "2",
                                         "nanotron_compat.config=n.yaml",
                                         "train.clip=2",
                                         "train.warmup=2"});
  EXPECT_EQ(other.ending.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("it means train.clip = 1, but the run has 2"));
  EXPECT_THAT(other.err, HasSubstr("means train.warmup = 1, but the run has train.warmup = 2"));
}

TEST(NanotronImport, LeavesTheFilesOfOtherProgramsToTheirBackends) {
  const Playground p;
  p.folder().write("a.yaml", "distributed_type: MULTI_CPU\nnum_processes: 2\n");
  const SubprocessResult ours = p.yoke({"config", "import", "a.yaml"});
  EXPECT_EQ(ours.ending.exit_code, 0) << ours.err;
  EXPECT_THAT(ours.out, HasSubstr("# a.yaml, as accelerate_compat reads it"));
  // The content of this file is of neither program, so the user has to choose.
  p.folder().write("b.yaml", "distribute: MULTI_CPU\n");
  const SubprocessResult neither = p.yoke({"config", "import", "b.yaml"});
  EXPECT_EQ(neither.ending.exit_code, 2);
  EXPECT_THAT(neither.err, HasSubstr("b.yaml can be read by no backend"));
  EXPECT_THAT(neither.err, HasSubstr("parallel_backend=NAME"));
  EXPECT_THAT(neither.err, HasSubstr("Accelerate has none of the keys of the file"));
  const SubprocessResult named =
      p.yoke({"config", "import", "b.yaml", "parallel_backend=nanotron_compat"});
  EXPECT_EQ(named.ending.exit_code, 2);
  EXPECT_THAT(named.err, HasSubstr("neither of the sections parallelism and tokens"));
}

TEST(NanotronImport, RefusesAFileWithSeveralFaultsAtOnce) {
  const Playground p;
  std::string file = kFile;
  for (const auto& [from, to] : {std::pair{"zero_stage: 1", "zero_stag: 1"},
                                 std::pair{"lr_warmup_style: linear", "lr_warmup_style: fast"}})
    file.replace(file.find(from), std::string(from).size(), to);
  p.folder().write("n.yaml", file);
  const SubprocessResult r = p.yoke(
      {"train", "run.toml", "parallel_backend=nanotron_compat", "nanotron_compat.config=n.yaml"});
  EXPECT_EQ(r.ending.exit_code, 2);
  EXPECT_THAT(r.err, HasSubstr("n.yaml:17: optimizer.zero_stag = 1"));
  EXPECT_THAT(r.err, HasSubstr("did you mean 'zero_stage'?"));
  EXPECT_THAT(r.err, HasSubstr("n.yaml: optimizer.zero_stage = unset"));
  EXPECT_THAT(r.err, HasSubstr("lr_warmup_style = fast; allowed: linear,constant"));

  const SubprocessResult whole = p.yoke({"config", "import", "n.yaml"});
  EXPECT_EQ(whole.ending.exit_code, 2);
  EXPECT_EQ(whole.out, "");
  EXPECT_THAT(whole.err, HasSubstr("\n  n.yaml:17: optimizer.zero_stag = 1"));
  EXPECT_THAT(whole.err, HasSubstr("lr_warmup_style = fast; allowed: linear,constant"));
  const SubprocessResult partial = p.yoke({"config", "import", "n.yaml", "--partial"});
  EXPECT_EQ(partial.ending.exit_code, 0) << partial.err;
  EXPECT_THAT(partial.out, HasSubstr("\n# refused: n.yaml:17: optimizer.zero_stag = 1"));
}

// Each mistake gives one message and exit code 2 before any rank starts.
TEST(NanotronBadInput, IsRefusedWithOneClearMessage) {
  const Playground p;
  p.folder().write("broken.yaml", "parallelism: {dp: 1\n");
  p.folder().write("list.yaml", "- parallelism\n");
  p.folder().write("tabs.yaml", "parallelism:\n\tdp: 1\n");
  const std::pair<const char*, const char*> cases[] = {
      {"nanotron_compat.config=nowhere.yaml", "nowhere.yaml"},
      {"nanotron_compat.config=broken.yaml", "broken.yaml, line 2: "},
      {"nanotron_compat.config=list.yaml", "the file holds no map of keys"},
      {"nanotron_compat.config=tabs.yaml", "tabs.yaml, line 2: "},
      {"nanotron_compat.zero_stage=2", "nanotron_compat.zero_stage = 2"},
      {"nanotron_compat.zero_stag=1", "did you mean 'zero_stage'?"},
      {"nanotron_compat.ddp_bucket_cap_mb=0", "nanotron_compat.ddp_bucket_cap_mb = 0"},
      {"nanotron_compat.loss=mean", "per_token, even, mean_of_means"},
      {"nanotron_compat.accumulate_grad_in_fp32=true", "it needs precision.param = \"bf16\""},
      {"precision.param=fp16", "precision.param = fp16"},
      {"train.optimizer=lion", "nanotron has AdamW and SGD; use one of them"},
      {"pp_degree=2",
       "pp_degree = 2; allowed: a smaller degree; nanotron divides layers by their cost"},
      {"dp_shards=2", "all of them belong to dp_degree"},
  };
  for (const auto& [setting, message] : cases) {
    const SubprocessResult r = p.yoke(
        {"train", "run.toml", "parallel_backend=nanotron_compat", "--virtual", "2", setting});
    EXPECT_EQ(r.ending.exit_code, 2) << setting;
    EXPECT_THAT(r.err, HasSubstr(message)) << setting;
    EXPECT_FALSE(std::filesystem::exists(p.folder() / "runs")) << setting;
  }
}

}  // namespace
}  // namespace yoke
