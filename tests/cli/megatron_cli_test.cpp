// Imports command lines of Megatron with the real program, and trains with the result.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/cli/playground.hpp"
#include "tests/support/indexed_dataset.hpp"

namespace yoke {
namespace {

using ::testing::HasSubstr;
using testing::indexed_dataset;
using testing::IndexedDataset;
using ::testing::Not;
using testing::Playground;

constexpr const char* kScript = R"(#!/bin/bash
MODEL=(--num-layers 1 --hidden-size 32 --ffn-hidden-size 64 --num-attention-heads 2
       --normalization RMSNorm --swiglu --disable-bias-linear --hidden-dropout 0
       --attention-dropout 0 --position-embedding-type rope
       --untie-embeddings-and-output-weights --vocab-size 256 --seq-length 16)
torchrun --nproc_per_node ${GPUS:-2} pretrain_gpt.py ${MODEL[@]} \
  --micro-batch-size 2 --global-batch-size 8 --train-iters 4 --lr 1e-3 \
  --lr-decay-style cosine --lr-warmup-iters 1 --use-distributed-optimizer \
  --overlap-grad-reduce --overlap-param-gather --ddp-bucket-size 4000 \
  --num-workers 4 --data-path text_document --eval-iters 0
)";

TEST(MegatronImport, PrintsARunFileThatTrains) {
  const Playground p;
  p.folder().write("run.sh", kScript);
  const SubprocessResult r = p.yoke({"config", "import", "run.sh", "data.path=text.txt"});
  EXPECT_EQ(r.ending.exit_code, 0) << r.err;
  for (const char* line : {"# run.sh, as megatron_compat reads it; for 2 rank(s)\n",
                           "\nparallel_backend = \"megatron_compat\" ",
                           "\ndp_shards = 2 ",
                           "\nmegatron_compat.overlap_grad_reduce = true ",
                           "\nmodel.layers = 1 ",
                           "\ntrain.betas = [0.9, 0.999] ",
                           "# run.sh: --adam-beta2 = its default, 0.999\n",
                           "\nlr_schedule.first_step = 0 ",
                           "\ndata.path = \"text.txt\" ",
                           "\n# run.sh:10: --num-workers = 4; no effect",
                           "\n# run.sh:10: --data-path = text_document means data.path = "
                           "\"text_document\"; the command line decides",
                           "means data.order = \"megatron\"; the command line decides"})
    EXPECT_THAT(r.out, HasSubstr(line));
  EXPECT_THAT(r.out, Not(HasSubstr("# refused")));
  p.folder().write("imported.toml", r.out);
  const SubprocessResult run =
      p.yoke({"train", "imported.toml", "--virtual", "2", "megatron_compat.args_file=run.sh"});
  EXPECT_EQ(run.ending.exit_code, 0) << run.out << run.err;
  EXPECT_THAT(run.out, HasSubstr("distributed optimizer, 1 instance(s) of 2 shard(s), "));

  // A run that differs from the file is refused: by the backend, and where only the host knows the
  // value, by the host.
  const SubprocessResult other = p.yoke({"train",
                                         "imported.toml",
                                         "--virtual",
                                         "2",
                                         "megatron_compat.args_file=run.sh",
                                         "train.clip=2",
                                         "train.warmup=2"});
  EXPECT_EQ(other.ending.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("it means train.clip = 1, but the run has 2"));
  EXPECT_THAT(other.err, HasSubstr("means train.warmup = 1, but the run has train.warmup = 2"));
}

TEST(MegatronImport, TrainsWithFsdp) {
  const Playground p;
  std::string script = kScript;
  script.replace(script.find("GPUS:-2"), 7, "GPUS:-4");
  const std::string words = "--use-distributed-optimizer";
  script.replace(
      script.find(words), words.size(), "--use-torch-fsdp2 --tensor-model-parallel-size 2");
  p.folder().write("run.sh", script);
  const SubprocessResult r = p.yoke({"config", "import", "run.sh", "data.path=text.txt"});
  EXPECT_EQ(r.ending.exit_code, 0) << r.err;
  EXPECT_THAT(r.out, HasSubstr("\nmegatron_compat.use_torch_fsdp2 = true "));
  p.folder().write("imported.toml", r.out);
  const std::vector<std::string> args = {
      "train", "imported.toml", "--virtual", "4", "megatron_compat.args_file=run.sh"};
  const SubprocessResult run = p.yoke(args);
  EXPECT_EQ(run.ending.exit_code, 0) << run.out << run.err;
  EXPECT_THAT(run.out, HasSubstr("unsharded "));

  // A refusal of ptd names the argument that caused it.
  std::vector<std::string> other = args;
  other.push_back("ptd.sequence_parallel=true");
  const SubprocessResult refused = p.yoke(other);
  EXPECT_EQ(refused.ending.exit_code, 2);
  EXPECT_THAT(refused.err,
              HasSubstr("ptd.sequence_parallel = true; allowed: false or unset; "
                        "--sequence-parallel = unset requires otherwise"));
}

// Writes NAME.bin and NAME.idx with 40 documents, whose ids fit the model of the script.
void write_dataset(const Playground& p, const std::string& name) {
  const IndexedDataset dataset = indexed_dataset<uint8_t>(std::vector<int32_t>(40, 30), 1);
  p.folder().write(name + ".bin", dataset.bin);
  p.folder().write(name + ".idx", dataset.idx);
}

TEST(MegatronImport, TranslatesTheData) {
  const Playground p;
  for (const char* name : {"a_document", "b_document"}) write_dataset(p, name);
  std::string script = kScript;
  const std::string words = "--data-path text_document --eval-iters 0";
  script.replace(script.find(words),
                 words.size(),
                 "--data-path 0.7 a_document 0.3 b_document --split 90,10,0 --eval-iters 2 "
                 "--eval-interval 4");
  p.folder().write("run.sh", script);
  const SubprocessResult r = p.yoke({"config", "import", "run.sh"});
  EXPECT_EQ(r.ending.exit_code, 0) << r.err;
  for (const char* line : {"\ndata.path = [\"a_document\", \"b_document\"] ",
                           "\ndata.weights = [0.7, 0.3] ",
                           "\ndata.order = \"megatron\" ",
                           "\ndata.split = [90, 10, 0] ",
                           "\nseed = 1234 "})
    EXPECT_THAT(r.out, HasSubstr(line));
  p.folder().write("imported.toml", r.out);
  const SubprocessResult run = p.yoke({"train", "imported.toml", "--virtual", "2"});
  EXPECT_EQ(run.ending.exit_code, 0) << run.out << run.err;
  EXPECT_THAT(run.out, HasSubstr("mixture of 2 sources"));
  const SubprocessResult samples =
      p.yoke({"data", "samples", "imported.toml", "--first", "1", "--count", "2"});
  EXPECT_EQ(samples.ending.exit_code, 0) << samples.err;
  EXPECT_THAT(samples.out, ::testing::StartsWith("{\"sample\":1,\"tokens\":["));
  EXPECT_EQ(std::count(samples.out.begin(), samples.out.end(), '\n'), 2);

  p.folder().write("sizes.sh",
                   script.replace(script.find("0.7 a_document 0.3"), 18, "a_document c_document"));
  const SubprocessResult sizes = p.yoke({"config", "import", "sizes.sh"});
  EXPECT_EQ(sizes.ending.exit_code, 2);
  EXPECT_THAT(sizes.err, HasSubstr("allowed: one dataset, or a weight before each"));
}

// Megatron does not evaluate if it has no data for that.
TEST(MegatronImport, TranslatesWhatIsForEvaluation) {
  const Playground p;
  struct Case {
    std::string arguments;
    std::vector<const char*> lines, others;
  };
  const Case cases[] = {
      {"--train-data-path 1 a --valid-data-path 1 b",
       {"\ndata.path = \"a\" ", "\neval.path = \"b\" ", "\neval.every = 4 "},
       {"data.weights", "data.split"}},
      {"--train-data-path a",
       {"\ndata.path = \"a\" ", "\ndata.split = [1] ", "\neval.every = 0 "},
       {"eval.path"}},
      {"--data-path 1 a --split 100,0,0",
       {"\ndata.weights = [1] ", "\ndata.split = [100, 0, 0] ", "\neval.every = 0 "},
       {"eval.path"}},
      {"--data-path a", {"\ndata.split = [969, 30, 1] ", "\neval.every = 4 "}, {"data.weights"}},
  };
  for (const Case& c : cases) {
    std::string script = kScript;
    const std::string words = "--data-path text_document --eval-iters 0";
    script.replace(
        script.find(words), words.size(), c.arguments + " --eval-iters 2 --eval-interval 4");
    p.folder().write("run.sh", script);
    const SubprocessResult r = p.yoke({"config", "import", "run.sh"});
    EXPECT_EQ(r.ending.exit_code, 0) << c.arguments << r.err;
    for (const char* line : c.lines) EXPECT_THAT(r.out, HasSubstr(line)) << c.arguments;
    for (const char* other : c.others) EXPECT_THAT(r.out, Not(HasSubstr(other))) << c.arguments;
  }
}

TEST(MegatronImport, TranslatesModelParallelism) {
  const Playground p;
  std::string script = kScript;
  script.replace(
      script.find("--num-workers 4"), 15, "--tensor-model-parallel-size 2 --sequence-parallel");
  p.folder().write("tp.sh", script);
  const SubprocessResult r = p.yoke({"config", "import", "tp.sh", "data.path=text.txt"});
  EXPECT_EQ(r.ending.exit_code, 0) << r.err;
  EXPECT_THAT(r.out, HasSubstr("\nparallel_backend = \"megatron_compat\" "));
  EXPECT_THAT(r.out, HasSubstr("\ntp_degree = 2 "));
  EXPECT_THAT(r.out, HasSubstr("\nmegatron_compat.sequence_parallel = true "));
  EXPECT_THAT(r.out, Not(HasSubstr("# refused")));
  p.folder().write("imported.toml", r.out);
  const SubprocessResult run = p.yoke({"train", "imported.toml", "--virtual", "2"});
  EXPECT_EQ(run.ending.exit_code, 0) << run.out << run.err;

  const SubprocessResult refused = p.yoke(
      {"train", "run.toml", "parallel_backend=megatron_compat", "megatron_compat.args_file=tp.sh"});
  EXPECT_EQ(refused.ending.exit_code, 2);
  EXPECT_THAT(refused.err,
              HasSubstr("--tensor-model-parallel-size = 2; allowed: 1; the run has 1 rank(s)"));
}

TEST(MegatronImport, WritesNothingIfAnArgumentCannotBeHonoured) {
  const Playground p;
  std::string script = kScript;
  script.replace(script.find("--num-workers 4"), 15, "--num-experts 8");
  p.folder().write("moe.sh", script);
  const SubprocessResult r = p.yoke({"config", "import", "moe.sh"});
  EXPECT_EQ(r.ending.exit_code, 2);
  EXPECT_EQ(r.out, "");
  EXPECT_THAT(r.err, HasSubstr("moe.sh has a key that cannot be honoured"));
  EXPECT_THAT(r.err, HasSubstr("\n  moe.sh:10: --num-experts = 8"));
  const SubprocessResult partial = p.yoke({"config", "import", "moe.sh", "--partial"});
  EXPECT_EQ(partial.ending.exit_code, 0) << partial.err;
  EXPECT_THAT(partial.out, HasSubstr("\n# refused: moe.sh:10: --num-experts = 8"));
}

TEST(MegatronImport, PrintsACommandThatMakesAReadableFileOfAScriptWhichOnlyAShellCanRead) {
  for (const char* launcher : {"torchrun --nproc_per_node ${GPUS:-2}", "python", "python3"}) {
    const Playground p;
    std::string script = kScript;
    const std::string torchrun = "torchrun --nproc_per_node ${GPUS:-2}";
    script.replace(script.find(torchrun), torchrun.size(), launcher);
    script.replace(script.find("--num-layers 1"), 14, "--num-layers $((1 + 2))");
    p.folder().write("run.sh", script);
    const SubprocessResult refused = p.yoke({"config", "import", "run.sh"});
    EXPECT_EQ(refused.ending.exit_code, 2);
    EXPECT_THAT(refused.err,
                HasSubstr("run.sh:6: a script that sets MODEL to a value that uses arithmetic"));
    const std::string before = "use that: ";
    const size_t command = refused.err.find(before);
    ASSERT_NE(command, std::string::npos) << refused.err;
    const std::string in_folder = "cd " + p.folder().path().string() + " && ";
    run_subprocess({"/bin/bash", "-c", in_folder + refused.err.substr(command + before.size())});
    const SubprocessResult r = p.yoke({"config", "import", "script.args", "data.path=text.txt"});
    EXPECT_EQ(r.ending.exit_code, 0) << r.err;
    EXPECT_THAT(r.out, HasSubstr("\nmodel.layers = 3 ")) << launcher;
  }
}

}  // namespace
}  // namespace yoke
