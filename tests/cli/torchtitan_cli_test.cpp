// Imports a job file of torchtitan with the real program, trains with the result, and trains with
// the file itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/playground.hpp"

namespace yoke {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Playground;

constexpr const char* kJob =
    "[model]\nconverters = [\"quantize.linear.float8\"]\n"
    "[training]\nlocal_batch_size = 2\nseq_len = 32\nsteps = 2\n"
    "[lr_scheduler]\nwarmup_steps = 1\n"
    "[activation_checkpoint]\nmode = \"full\"\n"
    "[quantize.linear.float8]\nenable_fsdp_float8_all_gather = true\nfilter_fqns = [\"output\"]\n";

TEST(TorchtitanImport, TranslatesTheJobWithItsFp8) {
  const Playground p;
  p.folder().write("job.toml", kJob);
  const SubprocessResult r = p.yoke(
      {"config", "import", "job.toml", "dp_shards=2", "model.preset=tiny", "data.path=text.txt"});
  ASSERT_EQ(r.ending.exit_code, 0) << r.err;
  for (const char* line : {"# job.toml, as ptd reads it; for 2 rank(s)\n",
                           "\ndata.seq_len = 32 ",
                           "\ntrain.global_batch = 4 ",
                           "\ntrain.lr = 8e-04 ",
                           "\nprecision.param = \"bf16\" ",
                           "\nprecision.product = \"fp8\" ",
                           "\nprecision.fp8_recipe = \"tensorwise\" ",
                           "\nprecision.fp8_skip = [\"lm_head\"] ",
                           "\nptd.fp8_gather = true ",
                           "\nptd.activation_checkpoint = \"full\" "})
    EXPECT_THAT(r.out, HasSubstr(line));
  p.folder().write("imported.toml", r.out + "model.layers = 1\n");
  const SubprocessResult run = p.yoke({"train", "imported.toml", "--virtual", "2"});
  EXPECT_EQ(run.ending.exit_code, 0) << run.out << run.err;
  EXPECT_THAT(run.out, HasSubstr("bf16, products in fp8 (tensorwise) except those of lm_head"));
}

TEST(TorchtitanImport, TheFileItselfTrainsTheSame) {
  const Playground p;
  p.folder().write("job.toml", kJob);
  p.folder().write("small.toml",
                   "[model]\npreset = \"tiny\"\nlayers = 1\n[data]\npath = \"text.txt\"\nseq_len = "
                   "32\n[train]\nsteps = 2\nglobal_batch = 4\n[checkpoint]\nevery = 0\n");
  const SubprocessResult run = p.yoke({"train",
                                       "small.toml",
                                       "parallel_backend=ptd",
                                       "ptd.torchtitan_config=job.toml",
                                       "--virtual",
                                       "2"});
  EXPECT_EQ(run.ending.exit_code, 0) << run.out << run.err;
  EXPECT_THAT(run.out, HasSubstr("bf16, products in fp8 (tensorwise) except those of lm_head"));
  const SubprocessResult other = p.yoke({"train",
                                         "small.toml",
                                         "parallel_backend=ptd",
                                         "ptd.torchtitan_config=job.toml",
                                         "train.clip=0.5",
                                         "--virtual",
                                         "2"});
  EXPECT_EQ(other.ending.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("it means train.clip = 1, but the run has 0.5"));
}

TEST(TorchtitanImport, NamesWhatItCannotHonourAndPrintsNothing) {
  const Playground p;
  p.folder().write("job.toml", "[training]\nenable_cpu_offload = true\nsteps = 2\n");
  const SubprocessResult r = p.yoke({"config", "import", "job.toml"});
  EXPECT_EQ(r.ending.exit_code, 2);
  EXPECT_EQ(r.out, "");
  EXPECT_THAT(r.err,
              AllOf(HasSubstr("a key that cannot be honoured"),
                    HasSubstr("job.toml:2: training.enable_cpu_offload = true")));
  p.folder().write("run_file.toml", "[train]\nsteps = 2\n");
  const SubprocessResult own = p.yoke({"config", "import", "run_file.toml"});
  EXPECT_EQ(own.ending.exit_code, 2);
  EXPECT_THAT(own.err, HasSubstr("it has none of the tables job, training"));
}

}  // namespace
}  // namespace yoke
