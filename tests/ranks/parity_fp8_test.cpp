// Parity of fp8 products: every backend and layout trains like one rank of `serial`. In fp64 the
// products are emulated in fp64, so a sum in another order moves a number across a rounding
// boundary of fp8 about once in 2^48 times.
//
//   rowwise_gw_hp   A scale belongs to one token or to the whole weight, and gradients of weights
//                   are plain sums over tokens: layouts change nothing but the order of sums.
//   rowwise         The products for gradients of weights scale over the tokens of a micro-batch.
//                   Powers of two round all normal numbers alike, but not subnormal ones.
//   tensorwise      The scales of activations are those of a micro-batch. Only the first loss is
//                   compared, and only for layouts that do not cut the batch.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <ostream>

#include "tests/ranks/parity_program.hpp"

namespace yoke::testing {
namespace {

using Args = std::vector<std::string>;

constexpr int64_t kSteps = 20;
constexpr double kLossGwHp = 1e-12, kNormGwHp = 1e-10;
constexpr double kLossRowwise = 1e-8, kNormRowwise = 1e-6;
constexpr double kFirstLossTensorwise = 1e-5;

PlainRun problem(int64_t steps = kSteps) {
  PlainRun run;
  run.steps = steps;
  run.fp64 = true;
  return run;
}

Args fp8(const std::string& recipe, const Args& more) {
  Args args{"precision.product=fp8", "precision.fp8_recipe=" + recipe};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

ProgramRun train(ParityProgram& program, const Args& args) {
  ProgramRun run = program.train(args);
  EXPECT_EQ(run.exit_code, 0) << run.output;
  return run;
}

struct Curve {
  std::vector<double> loss, norm;
};

const Curve& one_rank(const std::string& recipe) {
  static std::map<std::string, Curve> known;
  if (const auto it = known.find(recipe); it != known.end()) return it->second;
  ParityProgram program(problem(), parity_text(1 << 15));
  const ProgramRun run = train(program, fp8(recipe, {"parallel_backend=serial"}));
  return known[recipe] = {run.losses(), run.grad_norms()};
}

void expect_near(const std::vector<double>& got,
                 const std::vector<double>& expected,
                 double bound,
                 const char* what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_LE(std::fabs(got[i] - expected[i]), bound * std::fabs(expected[i]))
        << what << " of step " << i + 1 << ": " << got[i] << ", one rank " << expected[i];
}

struct Layout {
  const char* name;
  const char* backend;
  Args args;
};
void PrintTo(const Layout& layout, std::ostream* out) {
  *out << layout.name;
}

class Fp8Parity : public ::testing::TestWithParam<Layout> {
 protected:
  void SetUp() override {
    if (!backend_built(GetParam().backend))
      GTEST_SKIP() << "no backend " << GetParam().backend << " in this build";
  }
  Args args() const {
    Args all = GetParam().args;
    all.push_back(std::string("parallel_backend=") + GetParam().backend);
    return all;
  }
};

TEST_P(Fp8Parity, TrainsLikeOneRank) {
  ParityProgram program(problem(), parity_text(1 << 15));
  {
    SCOPED_TRACE("rowwise_gw_hp");
    const Curve& expected = one_rank("rowwise_gw_hp");
    ASSERT_LT(expected.loss.back(), 0.9 * expected.loss.front()) << "the problem teaches nothing";
    const ProgramRun run = train(program, fp8("rowwise_gw_hp", args()));
    expect_near(run.losses(), expected.loss, kLossGwHp, "loss");
    expect_near(run.grad_norms(), expected.norm, kNormGwHp, "grad_norm");
  }
  {
    SCOPED_TRACE("rowwise");
    const ProgramRun run = train(program, fp8("rowwise", args()));
    expect_near(run.losses(), one_rank("rowwise").loss, kLossRowwise, "loss");
    expect_near(run.grad_norms(), one_rank("rowwise").norm, kNormRowwise, "grad_norm");
  }
  {
    SCOPED_TRACE("tensorwise");
    const ProgramRun run = train(program, fp8("tensorwise", args()));
    expect_near({run.losses().at(0)},
                {one_rank("tensorwise").loss.at(0)},
                kFirstLossTensorwise,
                "first loss");
  }
}

Args on(int ranks, const Args& more) {
  Args args{"--virtual", std::to_string(ranks), "ptd.unit_bytes=1"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

INSTANTIATE_TEST_SUITE_P(
    Layouts,
    Fp8Parity,
    ::testing::Values(
        Layout{"ptd", "ptd", {}},
        Layout{"accumulation_4", "ptd", {"train.micro_batch=2"}},
        Layout{"ddp_2", "ptd", on(2, {"dp_degree=2"})},
        Layout{"ddp_4", "ptd", on(4, {"dp_degree=4"})},
        Layout{"fsdp_2", "ptd", on(2, {"dp_shards=2"})},
        Layout{"fsdp_4_processes", "ptd", {"--nproc", "4", "ptd.unit_bytes=1", "dp_shards=4"}},
        Layout{"hsdp_2_2", "ptd", on(4, {"dp_degree=2", "dp_shards=2"})},
        Layout{"cp_2", "ptd", on(2, {"cp_degree=2"})},
        Layout{"cp_4", "ptd", on(4, {"cp_degree=4"})},
        Layout{"tp_2_with_sequence_parallelism", "ptd", on(2, {"tp_degree=2"})},
        Layout{"tp_2", "ptd", on(2, {"tp_degree=2", "ptd.sequence_parallel=false"})},
        Layout{"cp_2_tp_2", "ptd", on(4, {"cp_degree=2", "tp_degree=2"})},
        Layout{"pp_2", "ptd", on(2, {"pp_degree=2", "train.micro_batch=2"})},
        Layout{"pp_2_split_backward",
               "ptd",
               on(2, {"pp_degree=2", "ptd.pp_schedule=zb_h1", "train.micro_batch=2"})},
        Layout{"deepspeed_stub_2", "deepspeed_stub", {"--virtual", "2"}},
        Layout{"accelerate_compat_2", "accelerate_compat", {"--virtual", "2", "dp_degree=2"}},
        Layout{"diloco_of_one_worker", "diloco", {"diloco.inner=serial"}}),
    [](const auto& info) { return std::string(info.param.name); });

// ---- Bit for bit ----

class Fp8Recipe : public ::testing::TestWithParam<const char*> {
 protected:
  ProgramRun run(const Args& more, const char* backend = "ptd", const char* param = "fp64") {
    Args args = fp8(GetParam(), {std::string("parallel_backend=") + backend});
    args.insert(
        args.end(),
        {std::string("precision.param=") + param,
         std::string("precision.reduce=") + (param == std::string("fp64") ? param : "fp32")});
    args.insert(args.end(), more.begin(), more.end());
    return train(program_, args);
  }
  static void expect_equal(const ProgramRun& got, const ProgramRun& expected) {
    ASSERT_FALSE(expected.steps.empty());
    EXPECT_EQ(got.losses(), expected.losses());
    EXPECT_EQ(got.grad_norms(), expected.grad_norms());
  }

 private:
  ParityProgram program_{problem(6), parity_text(1 << 15)};
};

// The first loss has the same bits. After that the optimizers of the backends round differently,
// with and without fp8, so later losses are compared in fp64 only.
TEST_P(Fp8Recipe, IsTheSameInAllBackendsOnOneRank) {
  for (const auto& [param, steps] : {std::pair("fp64", "6"), {"fp32", "1"}}) {
    const auto losses = [&, param = param, steps = steps](const char* backend) {
      return run({"train.clip=0", std::string("train.steps=") + steps}, backend, param).losses();
    };
    const std::vector<double> expected = losses("serial");
    for (const char* backend : {"ptd", "deepspeed_stub"}) {
      if (!backend_built(backend)) continue;
      SCOPED_TRACE(std::string(backend) + ", " + param);
      const std::vector<double> got = losses(backend);
      ASSERT_EQ(got.size(), expected.size());
      EXPECT_EQ(got[0], expected[0]);
      for (size_t i = 1; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-12) << i;
    }
  }
}

TEST_P(Fp8Recipe, ComputesTheSameAgain) {
  for (const char* param : {"fp64", "fp32", "bf16"}) {
    SCOPED_TRACE(param);
    const ProgramRun whole = run({"train.micro_batch=2"}, "ptd", param);
    expect_equal(run({"train.micro_batch=2", "ptd.activation_checkpoint=full"}, "ptd", param),
                 whole);
  }
}

TEST_P(Fp8Recipe, ResumesBitForBit) {
  for (const char* param : {"fp64", "fp32", "bf16"}) {
    SCOPED_TRACE(param);
    const ProgramRun whole = run({"checkpoint.every=3"}, "ptd", param);
    const ProgramRun rest = run({"checkpoint.resume=" + whole.checkpoint(3)}, "ptd", param);
    ASSERT_EQ(rest.steps.size(), 3u);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(rest.steps[i].loss, whole.steps[i + 3].loss) << i;
      EXPECT_EQ(rest.steps[i].grad_norm, whole.steps[i + 3].grad_norm) << i;
    }
  }
}

// Only steps that are reported are measured.
TEST_P(Fp8Recipe, IsNotChangedByMeasuringIt) {
  for (const char* backend : {"serial", "ptd"}) {
    const ProgramRun each = run({}, backend), last = run({"metrics.every=6"}, backend);
    ASSERT_EQ(last.steps.size(), 1u);
    EXPECT_EQ(last.steps[0].loss, each.steps[5].loss);
    EXPECT_EQ(last.steps[0].grad_norm, each.steps[5].grad_norm);
    EXPECT_GT(last.steps[0].rounded, 0);
  }
}

// A step of several micro-batches rounds each weight once, or once for each of two different
// scalings. `serial` rounds weights at every use, twice for each micro-batch.
TEST_P(Fp8Recipe, RoundsWeightsOnceForAllMicroBatches) {
  const auto rounded = [&](const char* backend, const char* micro_batch) {
    return run({"train.steps=1", std::string("train.micro_batch=") + micro_batch}, backend)
        .steps.at(0)
        .rounded;
  };
  const auto whole = rounded("serial", "8");
  const auto weights = (rounded("serial", "2") - whole) / 6;
  ASSERT_GT(weights, 0);
  const bool one_scaling = GetParam() == std::string("tensorwise");
  for (const char* backend : {"ptd", "deepspeed_stub"}) {
    if (backend_built(backend)) {
      EXPECT_EQ(rounded(backend, "2"), whole - (one_scaling ? weights : 0)) << backend;
    }
  }
}

// Without this the tests above could compare runs without fp8.
TEST_P(Fp8Recipe, ChangesTheLosses) {
  const double with = run({"train.steps=1"}).losses().at(0);
  const double without = run({"train.steps=1", "precision.fp8_skip=model:lm_head"}).losses().at(0);
  EXPECT_GT(std::fabs(with - without), 1e-6);
  EXPECT_LT(std::fabs(with - without), 1e-2 * without);
}

INSTANTIATE_TEST_SUITE_P(Recipes,
                         Fp8Recipe,
                         ::testing::Values("tensorwise", "rowwise", "rowwise_gw_hp"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace yoke::testing
