// Tests the parity of serial, the other examples and deepspeed_stub. Then tests the final
// parameters, bf16 and determinism of all backends.
#include <ATen/ATen.h>

#include <cmath>
#include <numeric>

#include "tests/ranks/parity_layouts.hpp"

namespace yoke::testing {
namespace {

// serial does one all_reduce of the gradients, and one of the loss and the target count.
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
    layout_name);

// `replicas` and `torch_replicas` communicate like serial. The former uses the callbacks of
// YokeModel, the latter LibTorch's autograd. The stages of `pipeline` send messages, whose bytes
// the conformance check C43 compares; the parameter of a tied model is on the first and on the last
// of them.
INSTANTIATE_TEST_SUITE_P(
    Examples,
    Parity,
    ::testing::Values(
        Layout{"replicas_2", "replicas", {"--virtual", "2"}, kTied, {"dp_replicate", 1, 1}},
        Layout{"pipeline_1", "pipeline", {}, kTied},
        Layout{"pipeline_2_tied", "pipeline", {"--nproc", "2"}, kTied, {nullptr}},
        Layout{"pipeline_3_uneven",
               "pipeline",
               {"--virtual", "3", "train.micro_batch=1"},
               kUneven,
               {nullptr}},
        Layout{"pipeline_4", "pipeline", {"--nproc", "4", "train.micro_batch=2"}, kBase, {nullptr}},
        Layout{"torch_2_accumulation_2",
               "torch_replicas",
               {"--virtual", "2", "train.micro_batch=2"},
               kTied,
               {"dp_replicate", 1, 1}}),
    layout_name);

// The traffic of deepspeed_stub in a step, as collectives over all parameters:
//
//   stage 0   one reduction
//   stage 1   one reduction and one gather
//   stage 2   one reduction for each micro-batch, and one gather
//   stage 3   one reduction and a gather for the forward; if the reuse distance is 0, also a gather
//             for the backward, except for the last block
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
    layout_name);

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
    ::testing::Values(
        ParamCase{"serial", "serial", {}},
        ParamCase{"serial_2", "serial", {"--virtual", "2"}},
        ParamCase{"ptd", "ptd", {}},
        ParamCase{"ptd_fsdp_4", "ptd", {"--virtual", "4", "ptd.unit_bytes=1"}},
        ParamCase{"ptd_fsdp_2_tp_2", "ptd", {"--virtual", "4", "dp_shards=2", "tp_degree=2"}},
        ParamCase{"ptd_cp_2", "ptd", {"--virtual", "2", "cp_degree=2"}},
        ParamCase{"deepspeed_stub_zero3_4",
                  "deepspeed_stub",
                  {"--virtual", "4", "deepspeed_stub.zero_stage=3"}},
        ParamCase{"megatron_compat_shards_4",
                  "megatron_compat",
                  {"--virtual",
                   "4",
                   "megatron_compat.use_distributed_optimizer=true",
                   "megatron_compat.overlap_grad_reduce=true",
                   "megatron_compat.overlap_param_gather=true",
                   "megatron_compat.ddp_bucket_size=4000"}},
        ParamCase{"nanotron_compat_zero_4",
                  "nanotron_compat",
                  {"--virtual", "4", "nanotron_compat.zero_stage=1"}}),
    [](const auto& info) { return std::string(info.param.name); });

// ---- bf16 ----

double mean(const std::vector<double>& losses) {
  return std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
}

// The mean loss of 100 steps must be close to that in fp32. The losses of this small model at the
// end are noise: with three seeds, the mean of the last ten was 2.6 % below to 0.5 % above that in
// fp32, for ptd on one rank as for other layouts and backends. The mean of all was 0.9 % below to
// 0.2 % above it.
TEST(ParityBf16, EveryLayoutLearnsLikeFp32) {
  constexpr double kBound = 0.015;
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
      {"ptd", {"--virtual", "2", "tp_degree=2"}},
      {"ptd", {"--virtual", "2", "cp_degree=2"}},
      {"deepspeed_stub", {"--virtual", "2", "deepspeed_stub.zero_stage=3"}},
      {"megatron_compat", {"--virtual", "2", "megatron_compat.use_distributed_optimizer=true"}},
      // Megatron adds gradients in bf16 unless it is given --accumulate-allreduce-grads-in-fp32.
      {"megatron_compat", {"--virtual", "2", "precision.reduce=bf16"}},
      {"nanotron_compat", {"--virtual", "2", "nanotron_compat.zero_stage=1"}}};
  for (const Run& r : runs) {
    if (!backend_built(r.backend)) continue;
    Args args = r.args;
    args.insert(args.end(), {std::string("parallel_backend=") + r.backend, "precision.param=bf16"});
    const ProgramRun run = program.train(args);
    ASSERT_EQ(run.exit_code, 0) << run.output;
    ASSERT_EQ(run.steps.size(), 100u) << run.output;
    EXPECT_NEAR(run.steps[0].loss / expected.loss[0], 1, 2e-3) << run.output;
    EXPECT_NEAR(mean(run.losses()) / mean(expected.loss), 1, kBound) << run.output;
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
                         {"ptd", {"--nproc", "2", "dp_degree=2", "train.micro_batch=2"}},
                         {"ptd", {"--virtual", "4", "cp_degree=2", "tp_degree=2"}},
                         {"ptd", {"--nproc", "4", "dp_shards=2", "tp_degree=2"}},
                         {"megatron_compat",
                          {"--nproc",
                           "2",
                           "megatron_compat.use_distributed_optimizer=true",
                           "megatron_compat.overlap_grad_reduce=true",
                           "megatron_compat.overlap_param_gather=true",
                           "megatron_compat.ddp_bucket_size=4000"}}};
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
