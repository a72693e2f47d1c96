// A resumed run equals the uninterrupted one: bit for bit in the same layout, and up to rounding in
// any other layout, whichever backend wrote the checkpoint.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <ostream>

#include "tests/ranks/parity_program.hpp"

namespace yoke::testing {
namespace {

constexpr double kLossFp64 = 1e-12, kNormFp64 = 1e-10;
constexpr int64_t kSteps = 6;

const bool one_thread = [] {
  at::set_num_threads(1);
  return true;
}();

using Args = std::vector<std::string>;

PlainRun problem() {
  PlainRun run;
  run.steps = kSteps;
  run.global_batch = 12;  // divisible by 1, 2, 3 and 4 data ranks
  run.dim = 36;
  run.heads = 6;
  run.ffn_dim = 50;
  run.vocab = 258;
  run.fp64 = true;
  return run;
}

struct Layout {
  std::string backend;
  Args args;
};

Args with(const Layout& layout, const Args& more) {
  Args args = layout.args;
  args.push_back("parallel_backend=" + layout.backend);
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

// ---- Resume ----

struct Case {
  const char* name;
  Layout layout;
  bool fp64 = false;
  bool tied = false;
  const char* optimizer = "adamw";
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

const Layout kMegatronDivided{"megatron_compat",
                              {"--virtual",
                               "8",
                               "pp_degree=2",
                               "tp_degree=2",
                               "train.micro_batch=1",
                               "megatron_compat.sequence_parallel=true",
                               "megatron_compat.use_distributed_optimizer=true",
                               // Shards of small buckets end within rows of matrices that tp cuts.
                               "megatron_compat.overlap_grad_reduce=true",
                               "megatron_compat.ddp_bucket_size=500"}},
    kNanotronDivided{"nanotron_compat",
                     {"--virtual",
                      "8",
                      "pp_degree=2",
                      "cp_degree=2",
                      "train.micro_batch=1",
                      "nanotron_compat.pp_engine=1f1b",
                      "nanotron_compat.zero_stage=1"}};

class Resume : public ::testing::TestWithParam<Case> {};

TEST_P(Resume, AfterAnyStepIsBitEqualToTheUninterruptedRun) {
  const Case& c = GetParam();
  if (!backend_built(c.layout.backend))
    GTEST_SKIP() << "no backend " << c.layout.backend << " in this build";
  PlainRun plain = problem();
  plain.fp64 = c.fp64;
  plain.tied = c.tied;
  plain.optimizer = c.optimizer;
  plain.momentum = 0.9;
  ParityProgram program(plain, parity_text(1 << 15));
  const ProgramRun whole = program.train(with(c.layout, {"checkpoint.every=1"}));
  ASSERT_EQ(whole.exit_code, 0) << whole.output;
  ASSERT_EQ(whole.steps.size(), static_cast<size_t>(kSteps));
  for (int64_t k : {int64_t{1}, int64_t{3}, kSteps - 1}) {
    const ProgramRun rest = program.train(
        with(c.layout, {"checkpoint.every=1", "checkpoint.resume=" + whole.checkpoint(k)}));
    ASSERT_EQ(rest.exit_code, 0) << rest.output;
    ASSERT_EQ(rest.steps.size(), static_cast<size_t>(kSteps - k)) << rest.output;
    for (int64_t s = k; s < kSteps; ++s) {
      const LoggedStep &a = whole.steps[s], &b = rest.steps[s - k];
      EXPECT_EQ(a.step, b.step);
      EXPECT_EQ(a.loss, b.loss) << "step " << a.step << " after a stop at " << k;
      EXPECT_EQ(a.grad_norm, b.grad_norm) << "step " << a.step << " after a stop at " << k;
      EXPECT_EQ(a.lr, b.lr);
      EXPECT_EQ(a.tokens, b.tokens);
    }
    EXPECT_EQ(read_file(whole.checkpoint(kSteps) + "/model.safetensors"),
              read_file(rest.checkpoint(kSteps) + "/model.safetensors"));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts,
    Resume,
    ::testing::Values(
        Case{"serial", {"serial", {}}},
        Case{"serial_2", {"serial", {"--virtual", "2"}}, true},
        Case{"serial_sgd", {"serial", {}}, false, false, "sgd"},
        Case{"serial_lion", {"serial", {}}, false, false, "lion"},
        Case{"diloco_2", {"diloco", {"--virtual", "2", "diloco.local_steps=4"}}},
        Case{"ptd", {"ptd", {}}},
        Case{"ptd_fp64", {"ptd", {}}, true},
        Case{"ptd_ddp_2", {"ptd", {"--virtual", "2", "dp_degree=2"}}},
        Case{"ptd_fsdp_2", {"ptd", {"--nproc", "2", "ptd.unit_bytes=1"}}},
        Case{"ptd_fsdp_3_tied", {"ptd", {"--virtual", "3", "ptd.unit_bytes=1"}}, false, true},
        Case{
            "ptd_fsdp_2_sgd", {"ptd", {"--virtual", "2", "ptd.unit_bytes=1"}}, false, false, "sgd"},
        Case{"ptd_fsdp_2_lion",
             {"ptd", {"--virtual", "2", "ptd.unit_bytes=1"}},
             false,
             false,
             "lion"},
        Case{"serial_muon", {"serial", {}}, false, false, "muon"},
        Case{"ptd_bf16_fsdp_3_muon",
             {"ptd", {"--virtual", "3", "ptd.unit_bytes=1", "precision.param=bf16"}},
             false,
             false,
             "muon"},
        Case{"ptd_bf16_fsdp_2_adam",
             {"ptd", {"--virtual", "2", "ptd.unit_bytes=1", "precision.param=bf16"}},
             false,
             false,
             "adam"},
        Case{"deepspeed_stub_zero2_2_lion",
             {"deepspeed_stub", {"--virtual", "2", "deepspeed_stub.zero_stage=2"}},
             false,
             false,
             "lion"},
        Case{"deepspeed_stub_zero3_2",
             {"deepspeed_stub", {"--virtual", "2", "deepspeed_stub.zero_stage=3"}}},
        Case{"ptd_hsdp_2_2", {"ptd", {"--virtual", "4", "dp_degree=2", "ptd.unit_bytes=1"}}},
        Case{"ptd_bf16_fsdp_2_tied",
             {"ptd", {"--nproc", "2", "ptd.unit_bytes=1", "precision.param=bf16"}},
             false,
             true},
        Case{"ptd_bf16_ddp_2",
             {"ptd",
              {"--virtual", "2", "dp_degree=2", "precision.param=bf16", "precision.reduce=bf16"}}},
        Case{"ptd_tp_2", {"ptd", {"--nproc", "2", "tp_degree=2"}}},
        Case{"ptd_cp_2_tied", {"ptd", {"--virtual", "2", "cp_degree=2"}}, false, true},
        Case{"ptd_bf16_fsdp_2_tp_2_tied",
             {"ptd",
              {"--virtual",
               "4",
               "dp_shards=2",
               "tp_degree=2",
               "ptd.unit_bytes=1",
               "precision.param=bf16"}},
             false,
             true},
        Case{"ptd_cp_2_tp_2_sgd",
             {"ptd", {"--virtual", "4", "cp_degree=2", "tp_degree=2", "ptd.unit_bytes=1"}},
             false,
             false,
             "sgd"},
        Case{"megatron_divided_8_tied", kMegatronDivided, false, true},
        Case{"nanotron_divided_8_tied", kNanotronDivided, false, true}),
    [](const auto& info) { return std::string(info.param.name); });

// ---- Another layout, another backend ----

struct Move {
  const char* name;
  Layout from, to;
};
void PrintTo(const Move& m, std::ostream* out) {
  *out << m.name;
}

class Relayout : public ::testing::TestWithParam<Move> {};

TEST_P(Relayout, ContinuesLikeThePlainLoop) {
  const Move& m = GetParam();
  for (const Layout* l : {&m.from, &m.to}) {
    if (!backend_built(l->backend)) GTEST_SKIP() << "no backend " << l->backend << " in this build";
  }
  constexpr int64_t kSwitch = 3;
  const auto text = parity_text(1 << 15);
  const PlainRun plain = problem();
  const PlainResult expected = train_plain(plain, text);
  ParityProgram program(plain, text);
  const ProgramRun first = program.train(with(m.from, {"checkpoint.every=3"}));
  ASSERT_EQ(first.exit_code, 0) << first.output;
  const ProgramRun rest =
      program.train(with(m.to, {"checkpoint.resume=" + first.checkpoint(kSwitch)}));
  ASSERT_EQ(rest.exit_code, 0) << rest.output;
  ASSERT_EQ(rest.steps.size(), static_cast<size_t>(kSteps - kSwitch)) << rest.output;
  for (const LoggedStep& s : rest.steps) {
    const double loss = expected.loss[s.step - 1], norm = expected.grad_norm[s.step - 1];
    EXPECT_LE(std::fabs(s.loss - loss), kLossFp64 * loss) << "step " << s.step;
    EXPECT_LE(std::fabs(s.grad_norm - norm), kNormFp64 * norm) << "step " << s.step;
  }
}

const Layout kSerial1{"serial", {}}, kSerial2{"serial", {"--virtual", "2"}}, kPtd1{"ptd", {}},
    kFsdp2{"ptd", {"--virtual", "2", "ptd.unit_bytes=1"}},
    kFsdp3{"ptd", {"--virtual", "3", "ptd.unit_bytes=1"}},
    kFsdp4{"ptd", {"--virtual", "4", "ptd.unit_bytes=1"}},
    kDdp2{"ptd", {"--virtual", "2", "dp_degree=2"}},
    kZero1On2{"deepspeed_stub", {"--virtual", "2", "deepspeed_stub.zero_stage=1"}},
    kZero3On4{"deepspeed_stub", {"--virtual", "4", "deepspeed_stub.zero_stage=3"}},
    kFsdp2Merged{"ptd", {"--virtual", "2"}}, kTp2{"ptd", {"--virtual", "2", "tp_degree=2"}},
    kFsdp3Tp2{"ptd", {"--virtual", "6", "dp_shards=3", "tp_degree=2", "ptd.unit_bytes=1"}},
    kCp2{"ptd", {"--virtual", "2", "cp_degree=2"}},
    kCp2Tp2{"ptd", {"--virtual", "4", "cp_degree=2", "tp_degree=2", "ptd.unit_bytes=1"}};

INSTANTIATE_TEST_SUITE_P(
    Moves,
    Relayout,
    ::testing::Values(Move{"serial_1_to_2", kSerial1, kSerial2},
                      Move{"serial_2_to_1", kSerial2, kSerial1},
                      Move{"fsdp_2_to_1", kFsdp2, kPtd1},
                      Move{"fsdp_2_to_3", kFsdp2, kFsdp3},
                      Move{"fsdp_2_to_4", kFsdp2, kFsdp4},
                      Move{"fsdp_3_to_2_merged", kFsdp3, kFsdp2Merged},
                      Move{"fsdp_4_to_ddp_2", kFsdp4, kDdp2},
                      Move{"ddp_2_to_fsdp_3", kDdp2, kFsdp3},
                      Move{"serial_to_ptd", kSerial1, kPtd1},
                      Move{"serial_to_fsdp_3", kSerial1, kFsdp3},
                      Move{"ptd_to_serial", kPtd1, kSerial1},
                      Move{"fsdp_4_to_serial_2", kFsdp4, kSerial2},
                      Move{"zero3_4_to_fsdp_3", kZero3On4, kFsdp3},
                      Move{"fsdp_2_to_zero1_2", kFsdp2, kZero1On2},
                      Move{"zero1_2_to_zero3_4", kZero1On2, kZero3On4},
                      Move{"serial_to_tp_2", kSerial1, kTp2},
                      Move{"tp_2_to_fsdp_3", kTp2, kFsdp3},
                      Move{"tp_2_to_zero3_4", kTp2, kZero3On4},
                      Move{"fsdp_3_tp_2_to_cp_2_tp_2", kFsdp3Tp2, kCp2Tp2},
                      Move{"cp_2_to_fsdp_3_tp_2", kCp2, kFsdp3Tp2},
                      Move{"cp_2_tp_2_to_ddp_2", kCp2Tp2, kDdp2},
                      Move{"tp_2_to_megatron", kTp2, kMegatronDivided},
                      Move{"megatron_to_nanotron", kMegatronDivided, kNanotronDivided},
                      Move{"nanotron_to_fsdp_3", kNanotronDivided, kFsdp3}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace yoke::testing
