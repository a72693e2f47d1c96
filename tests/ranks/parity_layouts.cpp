#include "tests/ranks/parity_layouts.hpp"

#include <ATen/Parallel.h>

#include <cmath>

namespace yoke::testing {
namespace {

constexpr double kLossFp64 = 1e-12, kNormFp64 = 1e-10, kLossFp32 = 2e-6, kNormFp32 = 4e-4;
constexpr int64_t kSteps = 20;

const bool one_thread = [] {
  at::set_num_threads(1);
  return true;
}();

const PlainResult& oracle(const Problem& problem, bool fp64) {
  static std::map<std::string, PlainResult> solved;
  const std::string key = std::string(problem.name) + (fp64 ? "/64" : "/32");
  if (const auto it = solved.find(key); it != solved.end()) return it->second;
  PlainRun run = problem.make();
  run.fp64 = fp64;
  return solved[key] = train_plain(run, parity_text(1 << 15));
}

void expect_relative(const std::vector<double>& got,
                     const std::vector<double>& expected,
                     double bound,
                     const char* what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_LE(std::fabs(got[i] - expected[i]), bound * std::fabs(expected[i]))
        << what << " of step " << i + 1 << ": " << got[i] << ", plain loop " << expected[i];
  }
}

void expect_traffic(const ProgramRun& run, const PlainRun& plain, const Traffic& traffic) {
  if (traffic.axis == nullptr) return;
  // Upper bound of the bytes of all reductions of scalars: losses, target counts, squared norms.
  constexpr double kScalars = 256;
  const double item = plain.fp64 ? 8 : 4;
  const double whole = item * static_cast<double>(num_elements(plain));
  const double kept = traffic.kept * item * static_cast<double>(last_two_blocks_elements(plain));
  const auto tokens = static_cast<double>(plain.global_batch * plain.seq_len);
  const auto dim = static_cast<double>(plain.dim),
             norms = static_cast<double>(2 * plain.layers + 1);
  const double stream = traffic.activations * item * tokens * dim;
  const double beside = traffic.activations > 0 ? item * (4 * tokens + norms * dim) : 0;
  // Each parameter and each shard may be padded to a cache line.
  const double padding = 64.0 * static_cast<double>(plain.layers * 9 + 3 + 8 * (plain.layers + 2));
  const size_t first = traffic.gathers_later ? 1 : 0;
  for (size_t s = first; s < run.steps.size(); ++s) {
    if (traffic.axis[0] == '\0') {
      EXPECT_EQ(run.bytes(s, ""), 0) << "step " << s + 1 << ": one rank needs nobody";
      continue;
    }
    const auto bytes = static_cast<double>(run.bytes(s, traffic.axis));
    EXPECT_GE(bytes, traffic.least * whole - kept + stream) << traffic.axis << ", step " << s + 1;
    EXPECT_LE(bytes, traffic.most * (whole + padding) - kept + stream + beside + kScalars)
        << traffic.axis << ", step " << s + 1;
    EXPECT_EQ(run.steps[s].comm, run.steps[first].comm) << "every step moves the same";
  }
}

}  // namespace

PlainRun base() {
  PlainRun run;
  run.steps = kSteps;
  return run;
}
PlainRun tied() {
  PlainRun run = base();
  run.tied = true;
  return run;
}
PlainRun uneven() {
  PlainRun run = base();
  run.dim = 42;
  run.heads = 7;
  run.kv_heads = 1;
  run.ffn_dim = 53;
  run.vocab = 257;
  run.global_batch = 12;
  run.seq_len = 17;
  return run;
}
PlainRun deep_tied_uneven() {
  PlainRun run = uneven();
  run.layers = 3;
  run.tied = true;
  return run;
}
PlainRun sgd() {
  PlainRun run = base();
  run.optimizer = "sgd";
  run.momentum = 0.9;
  run.lr = [](int64_t) { return 0.3; };
  run.clip = 0.5;
  return run;
}
PlainRun matrices() {
  PlainRun run = base();
  run.decay_matrices = true;
  run.weight_decay = 1.0;
  return run;
}

PlainRun four_layers() {
  PlainRun run = base();
  run.layers = 4;
  return run;
}

void PrintTo(const Layout& l, std::ostream* out) {
  *out << l.name;
}

void Parity::SetUp() {
  if (!backend_built(GetParam().backend))
    GTEST_SKIP() << "no backend " << GetParam().backend << " in this build";
}

void Parity::compare(bool fp64) {
  const Layout& layout = GetParam();
  PlainRun plain = layout.problem.make();
  plain.fp64 = fp64;
  const PlainResult& expected = oracle(layout.problem, fp64);
  ASSERT_LT(expected.loss.back(), 0.9 * expected.loss.front()) << "the problem teaches nothing";

  ParityProgram program(plain, parity_text(1 << 15));
  std::vector<std::string> args = layout.args;
  args.push_back(std::string("parallel_backend=") + layout.backend);
  const ProgramRun run = program.train(args);
  ASSERT_EQ(run.exit_code, 0) << run.output;
  expect_relative(run.losses(), expected.loss, fp64 ? kLossFp64 : kLossFp32, "loss");
  expect_relative(run.grad_norms(), expected.grad_norm, fp64 ? kNormFp64 : kNormFp32, "grad_norm");
  for (const LoggedStep& s : run.steps) {
    EXPECT_EQ(s.lr, plain.lr(s.step));
    EXPECT_EQ(s.tokens, s.step * plain.global_batch * plain.seq_len);
  }
  expect_traffic(run, plain, layout.traffic);
}

TEST_P(Parity, Fp64EqualsThePlainLoopToRounding) {
  compare(true);
}
TEST_P(Parity, Fp32StaysWithinTheSanityBound) {
  compare(false);
}

}  // namespace yoke::testing
