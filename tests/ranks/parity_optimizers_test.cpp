// Parity of the optimizers beyond AdamW and SGD: every backend that has them trains like the plain
// loop in fp64, and ends with the same parameters.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/ranks/parity_program.hpp"

namespace yoke::testing {
namespace {

using Args = std::vector<std::string>;

// Bounds of rounding. Lion's sign turns a difference of any size into one of 2 lr, but no direction
// is so close to 0 that rounding changes its sign.
constexpr double kLoss = 1e-12, kNorm = 1e-10, kParam = 1e-10;

struct Optimizer {
  const char* name;  // as in a run file
  bool bias_correction;
};

PlainRun problem(const Optimizer& optimizer) {
  PlainRun run;
  run.fp64 = true;
  run.optimizer = optimizer.name;
  run.bias_correction = optimizer.bias_correction;
  if (run.optimizer == "lion") run.lr = [](int64_t) { return 1e-3; };
  if (run.optimizer == "muon") run.momentum = 0.95;
  return run;
}

const PlainResult& oracle(const Optimizer& optimizer) {
  static std::map<std::string, PlainResult> solved;
  const std::string key = optimizer.name + std::string(optimizer.bias_correction ? "" : "/raw");
  if (const auto it = solved.find(key); it != solved.end()) return it->second;
  return solved[key] = train_plain(problem(optimizer), parity_text(1 << 15));
}

struct Way {
  const char* name;
  const char* backend;
  Args args;
};
using Case = std::tuple<Optimizer, Way>;

std::string case_name(const Case& c) {
  const auto& [optimizer, way] = c;
  return optimizer.name + std::string(optimizer.bias_correction ? "_" : "_uncorrected_") + way.name;
}
void PrintTo(const Way& way, std::ostream* out) {
  *out << way.name;
}
void PrintTo(const Optimizer& optimizer, std::ostream* out) {
  *out << optimizer.name;
}

void expect_relative(const std::vector<double>& got,
                     const std::vector<double>& expected,
                     double bound) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(got[i], expected[i], bound * std::fabs(expected[i])) << "step " << i + 1;
}

class ParityOptimizers : public ::testing::TestWithParam<Case> {};

TEST_P(ParityOptimizers, EqualThePlainLoopToRounding) {
  const auto& [optimizer, way] = GetParam();
  if (!backend_built(way.backend)) GTEST_SKIP() << "no backend " << way.backend << " in this build";
  const PlainResult& expected = oracle(optimizer);
  ASSERT_LT(expected.loss.back(), 0.9 * expected.loss.front()) << "the problem teaches nothing";
  ParityProgram program(problem(optimizer), parity_text(1 << 15));
  Args args = way.args;
  args.insert(args.end(), {std::string("parallel_backend=") + way.backend, "checkpoint.every=20"});
  const ProgramRun run = program.train(args);
  ASSERT_EQ(run.exit_code, 0) << run.output;
  expect_relative(run.losses(), expected.loss, kLoss);
  expect_relative(run.grad_norms(), expected.grad_norm, kNorm);
  const auto got = read_safetensors(run.checkpoint(20) + "/model.safetensors");
  ASSERT_EQ(got.size(), expected.params.size());
  for (const auto& [name, param] : expected.params) {
    const at::Tensor p = param.flatten();
    const double bound = kParam * p.abs().max().item<double>();
    ASSERT_EQ(static_cast<int64_t>(got.at(name).size()), p.numel()) << name;
    for (int64_t i = 0; i < p.numel(); ++i)
      ASSERT_NEAR(got.at(name)[i], p.const_data_ptr<double>()[i], bound) << name << "[" << i << "]";
  }
}

// Returns the layouts that have every optimizer, and more.
std::vector<Way> ways_and(const std::vector<Way>& more) {
  std::vector<Way> all{
      Way{"serial", "serial", {}},
      Way{"serial_2", "serial", {"--virtual", "2"}},
      Way{"ptd", "ptd", {}},
      Way{"ptd_ddp_2", "ptd", {"--virtual", "2", "dp_degree=2"}},
      Way{"ptd_fsdp_2", "ptd", {"--nproc", "2", "dp_shards=2", "ptd.unit_bytes=1"}}};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

INSTANTIATE_TEST_SUITE_P(
    All,
    ParityOptimizers,
    ::testing::Combine(
        ::testing::Values(Optimizer{"adam", true},
                          Optimizer{"adamw", false},
                          Optimizer{"adam", false},
                          Optimizer{"lion", true}),
        ::testing::ValuesIn(ways_and(
            {Way{"zero1_2", "deepspeed_stub", {"--virtual", "2", "deepspeed_stub.zero_stage=1"}},
             Way{"zero2_2", "deepspeed_stub", {"--nproc", "2", "deepspeed_stub.zero_stage=2"}},
             Way{"zero3_2",
                 "deepspeed_stub",
                 {"--virtual", "2", "deepspeed_stub.zero_stage=3"}}}))),
    [](const auto& info) { return case_name(info.param); });

// Four shards cut matrices at any element. A pipeline makes inner blocks the first of a rank.
INSTANTIATE_TEST_SUITE_P(
    Muon,
    ParityOptimizers,
    ::testing::Combine(
        ::testing::Values(Optimizer{"muon", true}),
        ::testing::ValuesIn(
            ways_and({Way{"ptd_fsdp_4", "ptd", {"--virtual", "4", "dp_shards=4"}},
                      Way{"ptd_hsdp_2_2", "ptd", {"--virtual", "4", "dp_degree=2", "dp_shards=2"}},
                      Way{"ptd_pp_2", "ptd", {"--virtual", "4", "pp_degree=2", "dp_shards=2"}},
                      Way{"ptd_cp_2", "ptd", {"--virtual", "2", "cp_degree=2"}}}))),
    [](const auto& info) { return case_name(info.param); });

}  // namespace
}  // namespace yoke::testing
