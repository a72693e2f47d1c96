// fp16 with a scaled loss, in every backend and layout.
//
//   Static scale    The losses are those of the plain loop in fp32, up to the rounding of fp16.
//                   A factor that is forgotten, or removed twice, changes the norm by that factor.
//   Dynamic scale   A scale that starts at 2^24 overflows at once. The layouts that compute the
//                   same micro-batches skip the same steps, and a resumed run has the bits of an
//                   uninterrupted one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <ostream>

#include "tests/ranks/parity_program.hpp"

namespace yoke::testing {
namespace {

using ::testing::HasSubstr;
using Args = std::vector<std::string>;

constexpr int64_t kSteps = 20;
// fp16 has 11 bits: products and activations are rounded by up to 2^-12. The loss is a mean over
// 256 tokens, and the norm one over all elements. Adam's division by the root of the mean square
// magnifies small differences in later steps.
constexpr double kLoss = 2e-3, kNorm = 2e-2, kMoments = 5e-2;

PlainRun problem() {
  PlainRun run;
  run.steps = kSteps;
  return run;
}

Args joined(Args args, const Args& more) {
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

ProgramRun train(ParityProgram& program, const Args& args) {
  ProgramRun run = program.train(joined(args, {"precision.param=fp16", "verify.every=1"}));
  EXPECT_EQ(run.exit_code, 0) << run.output;
  return run;
}

struct Layout {
  const char* name;
  const char* backend;
  Args args;
};
void PrintTo(const Layout& layout, std::ostream* out) {
  *out << layout.name;
}

class Fp16Parity : public ::testing::TestWithParam<Layout> {
 protected:
  void SetUp() override {
    if (!backend_built(GetParam().backend))
      GTEST_SKIP() << "no backend " << GetParam().backend << " in this build";
  }
  Args args(const Args& more) const {
    return joined(joined(GetParam().args, {std::string("parallel_backend=") + GetParam().backend}),
                  more);
  }
};

// Returns the norm of each moment in the last checkpoint of a run.
std::map<std::string, double> moment_norms(const ProgramRun& run) {
  std::map<std::string, double> norms;
  for (const auto& [name, values] :
       read_safetensors(run.checkpoint(kSteps) + "/optimizer.safetensors")) {
    double squares = 0;
    for (const double value : values) squares += value * value;
    norms[name] = std::sqrt(squares);
  }
  return norms;
}

// Adam's steps do not depend on the size of the gradients, but its moments do.
void expect_moments(const ProgramRun& run) {
  static const std::map<std::string, double> expected = [] {
    ParityProgram program(problem(), parity_text(1 << 15));
    return moment_norms(program.train({"parallel_backend=serial", "checkpoint.every=20"}));
  }();
  const std::map<std::string, double> norms = moment_norms(run);
  ASSERT_EQ(norms.size(), expected.size());
  for (const auto& [name, norm] : expected)
    EXPECT_NEAR(norms.at(name), norm, kMoments * norm) << name;
}

TEST_P(Fp16Parity, TrainsLikeFp32WithAStaticScale) {
  static const PlainResult expected = train_plain(problem(), parity_text(1 << 15));
  ASSERT_LT(expected.loss.back(), 0.9 * expected.loss.front()) << "the problem teaches nothing";
  ParityProgram program(problem(), parity_text(1 << 15));
  const ProgramRun run = train(program, args({"loss_scale.static=1024", "checkpoint.every=20"}));
  ASSERT_EQ(run.steps.size(), static_cast<size_t>(kSteps)) << run.output;
  for (size_t i = 0; i < run.steps.size(); ++i) {
    const LoggedStep& step = run.steps[i];
    EXPECT_NEAR(step.loss, expected.loss[i], kLoss * expected.loss[i]) << "step " << i + 1;
    EXPECT_NEAR(step.grad_norm, expected.grad_norm[i], kNorm * expected.grad_norm[i])
        << "step " << i + 1;
    EXPECT_EQ(step.loss_scale, 1024);
    EXPECT_EQ(step.skipped, 0);
  }
  expect_moments(run);
}

// A step of this scale overflows. Its number comes again with the next batch, and the scale falls
// until the gradients are finite.
const Args kForced{"loss_scale.initial_power=24",
                   "loss_scale.window=3",
                   "checkpoint.every=1",
                   "checkpoint.keep=100"};

TEST_P(Fp16Parity, ResumesBitForBitWithADynamicScale) {
  ParityProgram program(problem(), parity_text(1 << 15));
  const ProgramRun whole = train(program, args(kForced));
  ASSERT_EQ(whole.steps.size(), static_cast<size_t>(kSteps)) << whole.output;
  EXPECT_GT(whole.steps.front().skipped, 0) << "the scale of the first step did not overflow";
  EXPECT_GT(whole.steps.back().skipped, whole.steps.front().skipped) << "the scale never grew";
  EXPECT_EQ(whole.steps.back().tokens, (kSteps + whole.steps.back().skipped) * 8 * 32);
  EXPECT_THAT(whole.output, HasSubstr("step 1: gradients are not finite, so nothing is updated"));

  // One checkpoint for each update, and none for a step that was skipped.
  size_t saves = 0;
  for (size_t at = whole.output.find("\nsaved "); at != std::string::npos;
       at = whole.output.find("\nsaved ", at + 1))
    ++saves;
  EXPECT_EQ(saves, static_cast<size_t>(kSteps)) << whole.output;

  const ProgramRun rest =
      train(program, args(joined(kForced, {"checkpoint.resume=" + whole.checkpoint(10)})));
  ASSERT_EQ(rest.steps.size(), static_cast<size_t>(kSteps - 10)) << rest.output;
  for (size_t i = 0; i < rest.steps.size(); ++i) {
    const LoggedStep &a = whole.steps[i + 10], &b = rest.steps[i];
    EXPECT_EQ(a.loss, b.loss) << "step " << a.step;
    EXPECT_EQ(a.loss_scale, b.loss_scale) << "step " << a.step;
    EXPECT_EQ(a.skipped, b.skipped) << "step " << a.step;
    EXPECT_EQ(a.tokens, b.tokens) << "step " << a.step;
  }
  for (const char* file : {"/model.safetensors", "/optimizer.safetensors"})
    EXPECT_EQ(read_file(whole.checkpoint(kSteps) + file),
              read_file(rest.checkpoint(kSteps) + file));
}

Args on(int ranks, const Args& more) {
  Args args{"--virtual", std::to_string(ranks), "ptd.unit_bytes=1"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}
Args zero(int ranks, int stage) {
  return {"--virtual", std::to_string(ranks), "deepspeed_stub.zero_stage=" + std::to_string(stage)};
}

INSTANTIATE_TEST_SUITE_P(
    Layouts,
    Fp16Parity,
    ::testing::Values(
        Layout{"ptd", "ptd", {}},
        Layout{"reduced_in_fp16", "ptd", {"precision.reduce=fp16"}},
        Layout{"recompute", "ptd", {"ptd.activation_checkpoint=full", "train.micro_batch=2"}},
        Layout{"sums_in_order", "ptd", {"ptd.exact_sums=true"}},
        Layout{"ddp_2", "ptd", on(2, {"dp_degree=2"})},
        Layout{"fsdp_2", "ptd", on(2, {"dp_shards=2"})},
        Layout{"fsdp_4_processes", "ptd", {"--nproc", "4", "ptd.unit_bytes=1", "dp_shards=4"}},
        Layout{"hsdp_2_2", "ptd", on(4, {"dp_degree=2", "dp_shards=2"})},
        Layout{"cp_2", "ptd", on(2, {"cp_degree=2"})},
        Layout{"tp_2", "ptd", on(2, {"tp_degree=2"})},
        Layout{"pp_2", "ptd", on(2, {"pp_degree=2", "train.micro_batch=2"})},
        Layout{
            "zb_v_2_shards_2",
            "ptd",
            on(4, {"pp_degree=2", "dp_shards=2", "train.micro_batch=1", "ptd.pp_schedule=zb_v"})},
        Layout{"zero_0", "deepspeed_stub", zero(2, 0)},
        Layout{"zero_1", "deepspeed_stub", zero(2, 1)},
        Layout{"zero_2", "deepspeed_stub", zero(2, 2)},
        Layout{"zero_3", "deepspeed_stub", zero(4, 3)},
        Layout{"zero_3_reduced_in_fp16",
               "deepspeed_stub",
               joined(zero(2, 3), {"precision.reduce=fp16"})},
        Layout{"accelerate_ddp_2",
               "accelerate_compat",
               {"--virtual", "2", "dp_degree=2", "precision.reduce=fp16"}},
        Layout{"accelerate_sharded_2", "accelerate_compat", {"--virtual", "2", "dp_shards=2"}}),
    [](const auto& info) { return std::string(info.param.name); });

// Data parallelism does not change what a micro-batch computes, so the same gradients overflow.
TEST(Fp16, SkipsTheSameStepsOnAnyNumberOfDataRanks) {
  if (!backend_built("ptd")) GTEST_SKIP() << "no backend ptd in this build";
  ParityProgram program(problem(), parity_text(1 << 15));
  const Args args = joined(kForced, {"parallel_backend=ptd", "train.micro_batch=2"});
  const ProgramRun one = train(program, args);
  ASSERT_GT(one.steps.at(0).skipped, 0) << one.output;
  for (const Args& layout :
       {on(2, {"dp_shards=2"}), on(4, {"dp_shards=4"}), on(4, {"dp_degree=2", "dp_shards=2"})}) {
    const ProgramRun run = train(program, joined(args, layout));
    ASSERT_EQ(run.steps.size(), one.steps.size()) << run.output;
    for (size_t i = 0; i < run.steps.size(); ++i) {
      EXPECT_EQ(run.steps[i].loss_scale, one.steps[i].loss_scale) << "step " << i + 1;
      EXPECT_EQ(run.steps[i].skipped, one.steps[i].skipped) << "step " << i + 1;
    }
  }
}

// ---- Runs that cannot continue ----

class Fp16Failures : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!backend_built("ptd")) GTEST_SKIP() << "no backend ptd in this build";
  }
  std::string fail(const Args& args, int exit_code) {
    const ProgramRun run = program_.train(joined(args, {"parallel_backend=ptd"}));
    EXPECT_EQ(run.exit_code, exit_code) << run.output;
    return run.output;
  }
  ParityProgram program_{problem(), parity_text(1 << 15)};
};

TEST_F(Fp16Failures, TheScaleMayNotFallBelowItsMinimum) {
  const std::string output = fail({"--virtual",
                                   "2",
                                   "dp_shards=2",
                                   "precision.param=fp16",
                                   "loss_scale.initial_power=24",
                                   "loss_scale.min=8388608"},
                                  1);
  EXPECT_THAT(output, HasSubstr("loss_scale.min = 8388608; steps that overflowed: 1 (3 times)"));
}

TEST_F(Fp16Failures, AStaticScaleMayNotOverflowForever) {
  const std::string output =
      fail({"precision.param=fp16", "loss_scale.static=1e9", "train.max_skipped=5"}, 1);
  EXPECT_THAT(output, HasSubstr("train.max_skipped = 5 steps in a row have been skipped already"));
}

TEST_F(Fp16Failures, AnotherPrecisionOfTheCheckpointIsReported) {
  ProgramRun wide = program_.train({"parallel_backend=ptd", "checkpoint.every=10"});
  ASSERT_EQ(wide.exit_code, 0) << wide.output;
  const ProgramRun run = program_.train(
      {"parallel_backend=ptd", "precision.param=fp16", "checkpoint.resume=" + wide.checkpoint(10)});
  EXPECT_EQ(run.exit_code, 0) << run.output;
  EXPECT_THAT(run.output, HasSubstr("holds no loss scale"));
  EXPECT_THAT(run.output, HasSubstr("the loss scale starts at 65536"));
}

TEST_F(Fp16Failures, ABackendWithoutFp16IsRefused) {
  const ProgramRun run = program_.train({"parallel_backend=serial", "precision.param=fp16"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.output, HasSubstr("precision.param = fp16; allowed: fp32 | fp64"));
}

}  // namespace
}  // namespace yoke::testing
