// Every layout of every backend trains like the plain loop: same losses and gradient norms at every
// step, over the real program. The bounds are those of DESIGN section 14: in fp64 correct layouts
// agree to rounding, while a defect of the logic shows at 1e-7 and above; fp32 is the sanity check.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <ostream>

#include "tests/ranks/parity_program.hpp"

namespace yoke::testing {
namespace {

constexpr double kLossFp64 = 1e-12, kNormFp64 = 1e-10, kLossFp32 = 2e-6, kNormFp32 = 4e-4;
constexpr int64_t kSteps = 20;

const bool one_thread = [] {
  at::set_num_threads(1);
  return true;
}();

// The problems; each is solved once by the plain loop.
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
// No dimension is a multiple of 2, 3 or 4 ranks' worth of anything.
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
  run.sgd = true;
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

struct Problem {
  const char* name;
  PlainRun (*make)();
};
constexpr Problem kBase{"base", base}, kTied{"tied", tied}, kUneven{"uneven", uneven},
    kDeepTied{"deep_tied", deep_tied_uneven}, kSgd{"sgd", sgd}, kMatrices{"matrices", matrices};

// How many bytes the layout may move, in multiples of all parameters. The last two blocks may stay
// whole between forward and backward, where they would be gathered again at once: `kept` times
// their bytes less.
struct Traffic {
  const char* axis = "";  // "" = no communication
  double least = 0, most = 0, kept = 0;
};

struct Layout {
  const char* name;
  const char* backend;
  std::vector<std::string> args;
  Problem problem = kBase;
  Traffic traffic = {};
};
void PrintTo(const Layout& l, std::ostream* out) {
  *out << l.name;
}

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
  // Losses, weights and squared norms ride in reductions of a few scalars.
  constexpr double kScalars = 256;
  const double item = plain.fp64 ? 8 : 4;
  const double whole = item * static_cast<double>(num_elements(plain));
  const double kept = traffic.kept * item * static_cast<double>(last_two_blocks_elements(plain));
  // Every parameter and shard may be padded to a cache line.
  const double padding = 64.0 * static_cast<double>(plain.layers * 9 + 3 + 8 * (plain.layers + 2));
  for (size_t s = 0; s < run.steps.size(); ++s) {
    if (traffic.axis[0] == '\0') {
      EXPECT_EQ(run.bytes(s, ""), 0) << "step " << s + 1 << ": one rank needs nobody";
      continue;
    }
    const auto bytes = static_cast<double>(run.bytes(s, traffic.axis));
    EXPECT_GE(bytes, traffic.least * whole - kept) << traffic.axis << ", step " << s + 1;
    EXPECT_LE(bytes, traffic.most * (whole + padding) - kept + kScalars)
        << traffic.axis << ", step " << s + 1;
    EXPECT_EQ(run.steps[s].comm, run.steps[0].comm) << "every step moves the same";
  }
}

class Parity : public ::testing::TestWithParam<Layout> {
 protected:
  void SetUp() override {
    if (!backend_built(GetParam().backend))
      GTEST_SKIP() << "no backend " << GetParam().backend << " in this build";
  }

  void compare(bool fp64) {
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
    expect_relative(
        run.grad_norms(), expected.grad_norm, fp64 ? kNormFp64 : kNormFp32, "grad_norm");
    for (const LoggedStep& s : run.steps) {
      EXPECT_EQ(s.lr, plain.lr(s.step));
      EXPECT_EQ(s.tokens, s.step * plain.global_batch * plain.seq_len);
    }
    expect_traffic(run, plain, layout.traffic);
  }
};

TEST_P(Parity, Fp64EqualsThePlainLoopToRounding) {
  compare(true);
}
TEST_P(Parity, Fp32StaysWithinTheSanityBound) {
  compare(false);
}

using Args = std::vector<std::string>;

// serial: one all-reduce of the gradients, one of loss and weight.
INSTANTIATE_TEST_SUITE_P(
    Serial,
    Parity,
    ::testing::Values(
        Layout{"single", "serial", {}},
        Layout{"accumulation_4", "serial", {"train.micro_batch=2"}},
        Layout{"two_replicas", "serial", {"--virtual", "2"}, kBase, {"dp_replicate", 1, 1}},
        Layout{"four_replicas_accumulation_2",
               "serial",
               {"--virtual", "4", "train.micro_batch=1"},
               kBase,
               {"dp_replicate", 1, 1}},
        Layout{"two_processes", "serial", {"--nproc", "2"}, kBase, {"dp_replicate", 1, 1}},
        Layout{"tied", "serial", {"--virtual", "2"}, kTied, {"dp_replicate", 1, 1}},
        Layout{
            "uneven_three_replicas", "serial", {"--virtual", "3"}, kUneven, {"dp_replicate", 1, 1}},
        Layout{"sgd", "serial", {}, kSgd},
        Layout{"decay_matrices", "serial", {}, kMatrices}),
    [](const auto& info) { return std::string(info.param.name); });

// ptd. FSDP, one micro-batch: gathered for forward and again for backward, but for the last two
// blocks, and reduced once: 3 - kept. Without resharding: gathered once, reduced once: 2. Every
// further micro-batch of accumulate = sharded costs the same again; of unsharded only the gathers.
INSTANTIATE_TEST_SUITE_P(
    Ptd,
    Parity,
    ::testing::Values(
        Layout{"single", "ptd", {}},
        Layout{"single_accumulation_4", "ptd", {"train.micro_batch=2"}},
        Layout{"single_checkpointing", "ptd", {"ptd.activation_checkpoint=full"}},
        Layout{"single_tied", "ptd", {}, kTied},
        Layout{"single_sgd", "ptd", {}, kSgd},
        Layout{"single_decay_matrices", "ptd", {}, kMatrices},
        Layout{"ddp_2", "ptd", {"--virtual", "2", "dp_degree=2"}, kBase, {"dp_replicate", 1, 1}},
        Layout{"ddp_2_processes",
               "ptd",
               {"--nproc", "2", "dp_degree=2"},
               kBase,
               {"dp_replicate", 1, 1}},
        Layout{"ddp_4_accumulation_2",
               "ptd",
               {"--virtual", "4", "dp_degree=4", "train.micro_batch=1"},
               kBase,
               {"dp_replicate", 1, 1}},
        Layout{"ddp_3_uneven_tied",
               "ptd",
               {"--virtual", "3", "dp_degree=3"},
               kDeepTied,
               {"dp_replicate", 1, 1}},
        Layout{"fsdp_2",
               "ptd",
               {"--virtual", "2", "dp_shards=2", "ptd.unit_bytes=1"},
               kBase,
               {"dp_shard", 3, 3, 1}},
        Layout{"fsdp_2_processes",
               "ptd",
               {"--nproc", "2", "ptd.unit_bytes=1"},
               kBase,
               {"dp_shard", 3, 3, 1}},
        Layout{"fsdp_2_merged_units", "ptd", {"--virtual", "2"}, kBase, {"dp_shard", 2, 3}},
        Layout{"fsdp_2_no_reshard",
               "ptd",
               {"--virtual", "2", "ptd.unit_bytes=1", "ptd.reshard_after_forward=false"},
               kBase,
               {"dp_shard", 2, 2}},
        Layout{"fsdp_2_checkpointing",
               "ptd",
               {"--virtual", "2", "ptd.unit_bytes=1", "ptd.activation_checkpoint=full"},
               kBase,
               {"dp_shard", 3, 3, 1}},
        Layout{
            "fsdp_4", "ptd", {"--virtual", "4", "ptd.unit_bytes=1"}, kBase, {"dp_shard", 3, 3, 1}},
        Layout{
            "fsdp_2_accumulation_2_sharded",
            "ptd",
            {"--virtual", "2", "ptd.unit_bytes=1", "train.micro_batch=2", "ptd.accumulate=sharded"},
            kBase,
            {"dp_shard", 4, 6}},
        Layout{"fsdp_2_accumulation_2_unsharded",
               "ptd",
               {"--virtual",
                "2",
                "ptd.unit_bytes=1",
                "train.micro_batch=2",
                "ptd.accumulate=unsharded"},
               kBase,
               {"dp_shard", 3, 5}},
        Layout{
            "fsdp_2_accumulation_4_sharded",
            "ptd",
            {"--virtual", "2", "ptd.unit_bytes=1", "train.micro_batch=1", "ptd.accumulate=sharded"},
            kBase,
            {"dp_shard", 8, 12}},
        Layout{"fsdp_2_accumulation_4_unsharded",
               "ptd",
               {"--virtual",
                "2",
                "ptd.unit_bytes=1",
                "train.micro_batch=1",
                "ptd.accumulate=unsharded"},
               kBase,
               {"dp_shard", 5, 9}},
        Layout{"fsdp_2_tied",
               "ptd",
               {"--virtual", "2", "ptd.unit_bytes=1"},
               kTied,
               {"dp_shard", 2, 3}},
        Layout{"fsdp_3_uneven",
               "ptd",
               {"--virtual", "3", "ptd.unit_bytes=1"},
               kUneven,
               {"dp_shard", 3, 3, 1}},
        Layout{"fsdp_4_deep_tied_checkpointing_accumulation",
               "ptd",
               {"--virtual",
                "4",
                "ptd.unit_bytes=1",
                "train.micro_batch=1",
                "ptd.activation_checkpoint=full"},
               kDeepTied,
               {"dp_shard", 6, 9}},
        Layout{"hsdp_2_2",
               "ptd",
               {"--virtual", "4", "dp_degree=2", "dp_shards=2", "ptd.unit_bytes=1"},
               kBase,
               {"dp_replicate", 0.5, 0.5}},
        Layout{"hsdp_2_3_uneven",
               "ptd",
               {"--virtual", "6", "dp_degree=2", "dp_shards=3", "ptd.unit_bytes=1"},
               kUneven,
               {"dp_shard", 3, 3, 1}},
        Layout{"hsdp_2_2_processes_deep_tied_accumulation",
               "ptd",
               {"--nproc", "4", "dp_degree=2", "ptd.unit_bytes=1", "train.micro_batch=1"},
               kDeepTied,
               {"dp_replicate", 0.5, 0.5}},
        Layout{"fsdp_2_sgd",
               "ptd",
               {"--virtual", "2", "ptd.unit_bytes=1"},
               kSgd,
               {"dp_shard", 3, 3, 1}},
        Layout{"fsdp_2_decay_matrices",
               "ptd",
               {"--virtual", "2", "ptd.unit_bytes=1"},
               kMatrices,
               {"dp_shard", 3, 3, 1}}),
    [](const auto& info) { return std::string(info.param.name); });

// deepspeed_stub. Stage 0: one reduction; 1 and 2: reduced, then gathered once per step, and stage
// 2 reduces every micro-batch; 3: gathered for forward and, with no reuse distance, again for
// backward, but for the last block.
INSTANTIATE_TEST_SUITE_P(
    DeepspeedStub,
    Parity,
    ::testing::Values(Layout{"zero0_2",
                             "deepspeed_stub",
                             {"--virtual", "2", "deepspeed_stub.zero_stage=0"},
                             kBase,
                             {"dp_replicate", 1, 1}},
                      Layout{"zero1_2_processes",
                             "deepspeed_stub",
                             {"--nproc", "2", "deepspeed_stub.zero_stage=1"},
                             kBase,
                             {"dp_shard", 2, 2}},
                      Layout{"zero2_4_accumulation_2_small_buckets",
                             "deepspeed_stub",
                             {"--virtual",
                              "4",
                              "train.micro_batch=1",
                              "deepspeed_stub.zero_stage=2",
                              "deepspeed_stub.overlap_comm=true",
                              "deepspeed_stub.reduce_bucket_size=4000",
                              "deepspeed_stub.allgather_bucket_size=4000"},
                             kBase,
                             {"dp_shard", 3, 3}},
                      Layout{"zero3_2_tied",
                             "deepspeed_stub",
                             {"--virtual", "2", "deepspeed_stub.zero_stage=3"},
                             kTied,
                             {"dp_shard", 2, 2}},
                      Layout{"zero3_3_uneven_gathered_by_block",
                             "deepspeed_stub",
                             {"--virtual",
                              "3",
                              "deepspeed_stub.zero_stage=3",
                              "deepspeed_stub.reduce_bucket_size=4000",
                              "deepspeed_stub.stage3_prefetch_bucket_size=4000",
                              "deepspeed_stub.stage3_param_persistence_threshold=0",
                              "deepspeed_stub.stage3_max_reuse_distance=0"},
                             kUneven,
                             {"dp_shard", 2, 3}}),
    [](const auto& info) { return std::string(info.param.name); });

// ---- Parameters ----

struct ParamCase {
  const char* name;
  const char* backend;
  Args args;
};
void PrintTo(const ParamCase& c, std::ostream* out) {
  *out << c.name;
}
class ParityParameters : public ::testing::TestWithParam<ParamCase> {};

TEST_P(ParityParameters, EqualThoseOfThePlainLoopAfterTenSteps) {
  if (!backend_built(GetParam().backend))
    GTEST_SKIP() << "no backend " << GetParam().backend << " in this build";
  PlainRun plain = base();
  plain.steps = 10;
  const auto text = parity_text(1 << 15);
  const PlainResult expected = train_plain(plain, text);
  ParityProgram program(plain, text);
  Args args = GetParam().args;
  args.insert(args.end(),
              {std::string("parallel_backend=") + GetParam().backend, "checkpoint.every=10"});
  const ProgramRun run = program.train(args);
  ASSERT_EQ(run.exit_code, 0) << run.output;
  const auto got = read_safetensors(run.checkpoint(10) + "/model.safetensors");
  ASSERT_EQ(got.size(), expected.params.size());
  for (const auto& [name, param] : expected.params) {
    const at::Tensor p = param.to(at::kDouble).flatten();
    ASSERT_TRUE(got.count(name)) << name;
    ASSERT_EQ(static_cast<int64_t>(got.at(name).size()), p.numel()) << name;
    for (int64_t i = 0; i < p.numel(); ++i) {
      const double value = p.const_data_ptr<double>()[i];
      ASSERT_NEAR(got.at(name)[i], value, 1e-5 + 1.3e-6 * std::fabs(value))
          << name << "[" << i << "]";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts,
    ParityParameters,
    ::testing::Values(ParamCase{"serial", "serial", {}},
                      ParamCase{"serial_2", "serial", {"--virtual", "2"}},
                      ParamCase{"ptd", "ptd", {}},
                      ParamCase{"ptd_fsdp_4", "ptd", {"--virtual", "4", "ptd.unit_bytes=1"}},
                      ParamCase{"deepspeed_stub_zero3_4",
                                "deepspeed_stub",
                                {"--virtual", "4", "deepspeed_stub.zero_stage=3"}}),
    [](const auto& info) { return std::string(info.param.name); });

// ---- bf16 ----

// Loss within 1 % of fp32 at step 100, whatever the layout.
TEST(ParityBf16, EveryLayoutLearnsLikeFp32) {
  PlainRun plain = tied();
  plain.steps = 100;
  const auto text = parity_text(1 << 15);
  const PlainResult expected = train_plain(plain, text);
  ParityProgram program(plain, text);
  struct Run {
    const char* backend;
    Args args;
  };
  const Run runs[] = {
      {"ptd", {}},
      {"ptd", {"--virtual", "2", "dp_degree=2"}},
      {"ptd", {"--nproc", "2", "ptd.unit_bytes=1", "train.micro_batch=2"}},
      {"ptd",
       {"--virtual", "4", "dp_degree=2", "ptd.unit_bytes=1", "ptd.activation_checkpoint=full"}},
      {"ptd", {"--nproc", "4", "dp_degree=2", "ptd.unit_bytes=1", "precision.reduce=bf16"}},
      {"deepspeed_stub", {"--virtual", "2", "deepspeed_stub.zero_stage=3"}}};
  for (const Run& r : runs) {
    if (!backend_built(r.backend)) continue;
    Args args = r.args;
    args.insert(args.end(), {std::string("parallel_backend=") + r.backend, "precision.param=bf16"});
    const ProgramRun run = program.train(args);
    ASSERT_EQ(run.exit_code, 0) << run.output;
    ASSERT_EQ(run.steps.size(), 100u) << run.output;
    EXPECT_NEAR(run.steps[0].loss / expected.loss[0], 1, 2e-3) << run.output;
    EXPECT_NEAR(run.steps[99].loss / expected.loss[99], 1, 0.01) << run.output;
    EXPECT_NE(run.losses(), expected.loss) << "this run computed in fp32";
  }
}

// ---- Determinism ----

TEST(ParityDeterminism, TheSameLayoutTwiceIsBitIdentical) {
  struct Twice {
    const char* backend;
    Args args;
  };
  const Twice cases[] = {{"serial", {"--virtual", "2"}},
                         {"ptd", {}},
                         {"ptd", {"--virtual", "4", "ptd.unit_bytes=1"}},
                         {"ptd", {"--nproc", "4", "dp_degree=2", "precision.param=bf16"}},
                         {"ptd", {"--nproc", "2", "dp_degree=2", "train.micro_batch=2"}}};
  for (Twice c : cases) {
    if (!backend_built(c.backend)) continue;
    ParityProgram program(base(), parity_text(1 << 15));
    c.args.push_back(std::string("parallel_backend=") + c.backend);
    const ProgramRun first = program.train(c.args), second = program.train(c.args);
    ASSERT_EQ(first.exit_code, 0) << first.output;
    ASSERT_EQ(second.exit_code, 0) << second.output;
    EXPECT_EQ(first.losses(), second.losses()) << first.output;
    EXPECT_EQ(first.grad_norms(), second.grad_norms()) << first.output;
  }
}

}  // namespace
}  // namespace yoke::testing
