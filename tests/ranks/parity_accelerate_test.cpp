// Configs of Accelerate over the real program: each of them trains like the plain loop, a run that
// is resumed is the run that never stopped, and faults are told before any rank starts.
#include <gmock/gmock.h>

#include "tests/ranks/parity_layouts.hpp"
#include "tests/support/temp_folder.hpp"

namespace yoke::testing {
namespace {

using ::testing::HasSubstr;

constexpr const char* kBackend = "accelerate_compat";
constexpr const char* kDdp = "distributed_type: MULTI_CPU\n";
constexpr const char* kFsdp =
    "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, fsdp_auto_wrap_policy: "
    "SIZE_BASED_WRAP, fsdp_min_num_params: 1}\n";

// The argument that names a file with this config.
std::string config(const std::string& yaml) {
  static const TempFolder folder;
  static int files = 0;
  const std::string name = "accelerate" + std::to_string(files++) + ".yaml";
  return "accelerate_compat.config_file=" + folder.write(name, yaml);
}

// DDP reduces once a step, or after each micro-batch; what looks for unused parameters adds a word
// for each.
INSTANTIATE_TEST_SUITE_P(
    Accelerate,
    Parity,
    ::testing::Values(
        Layout{"ddp_2_processes",
               kBackend,
               {"--nproc", "2", config(kDdp)},
               kBase,
               {"dp_replicate", 1, 1}},
        Layout{"ddp_4_accumulation_2",
               kBackend,
               {"--virtual",
                "4",
                config(std::string(kDdp) + "gradient_accumulation_steps: 2\n"),
                "accelerate_compat.bucket_cap_mb=1"},
               kBase,
               {"dp_replicate", 1, 1}},
        Layout{"ddp_2_accumulation_4_sync_each_batch",
               kBackend,
               {"--virtual",
                "2",
                config(std::string(kDdp) + "gradient_accumulation_steps: 4\n"),
                "accelerate_compat.sync_each_batch=true"},
               kBase,
               {"dp_replicate", 4, 4}},
        Layout{"ddp_3_uneven_tied",
               kBackend,
               {"--virtual",
                "3",
                config(kDdp),
                "accelerate_compat.gradient_as_bucket_view=false",
                "accelerate_compat.find_unused_parameters=true"},
               kDeepTied,
               {"dp_replicate", 1, 1.05}},
        Layout{"fsdp_2_processes",
               kBackend,
               {"--nproc", "2", config(kFsdp)},
               kBase,
               {"dp_shard", 3, 3, 1}},
        Layout{"fsdp_2_accumulation_2_shard_grad_op",
               kBackend,
               {"--virtual",
                "2",
                config("distributed_type: FSDP\ngradient_accumulation_steps: 2\n"
                       "fsdp_config: {fsdp_version: 1, fsdp_sharding_strategy: SHARD_GRAD_OP}\n")},
               kBase,
               {"dp_shard", 3, 3}},
        Layout{
            "hsdp_2_2_checkpointing",
            kBackend,
            {"--virtual",
             "4",
             config(
                 "distributed_type: FSDP\nnum_machines: 2\nfsdp_config: {fsdp_version: 1, "
                 "fsdp_sharding_strategy: HYBRID_SHARD, fsdp_activation_checkpointing: true}\n")},
            kBase,
            {"dp_replicate", 0.5, 0.5}}),
    layout_name);

ProgramRun train(ParityProgram& program, const std::string& yaml, Args args) {
  args.insert(args.end(), {std::string("parallel_backend=") + kBackend, config(yaml)});
  return program.train(args);
}

TEST(AccelerateDdp, LearnsInBf16LikeInFp32) {
  PlainRun plain = base();
  plain.steps = 60;
  const auto text = parity_text(1 << 15);
  const PlainResult expected = train_plain(plain, text);
  ParityProgram program(plain, text);
  const ProgramRun run = train(program,
                               std::string(kDdp) + "mixed_precision: bf16\n",
                               {"--virtual", "2", "precision.param=bf16", "precision.reduce=bf16"});
  ASSERT_EQ(run.exit_code, 0) << run.output;
  EXPECT_NEAR(run.steps[0].loss / expected.loss[0], 1, 2e-3);
  EXPECT_NEAR(run.steps[59].loss / expected.loss[59], 1, 0.01);
}

TEST(AccelerateDdp, AResumedRunIsTheRunThatNeverStopped) {
  PlainRun plain = base();
  plain.steps = 6;
  ParityProgram program(plain, parity_text(1 << 15));
  const Args layout = {"--virtual", "4", "train.micro_batch=1", "checkpoint.every=1"};
  const ProgramRun whole = train(program, kDdp, layout);
  ASSERT_EQ(whole.exit_code, 0) << whole.output;
  Args resumed = layout;
  resumed.push_back("checkpoint.resume=" + whole.checkpoint(3));
  const ProgramRun rest = train(program, kDdp, resumed);
  ASSERT_EQ(rest.exit_code, 0) << rest.output;
  ASSERT_EQ(rest.steps.size(), 3u);
  for (size_t s = 0; s < 3; ++s) {
    EXPECT_EQ(rest.steps[s].loss, whole.steps[s + 3].loss);
    EXPECT_EQ(rest.steps[s].grad_norm, whole.steps[s + 3].grad_norm);
  }
  EXPECT_EQ(read_file(whole.checkpoint(6) + "/model.safetensors"),
            read_file(rest.checkpoint(6) + "/model.safetensors"));

  // The same checkpoint under another strategy goes on to rounding.
  const ProgramRun sharded =
      train(program, kFsdp, {"--virtual", "2", "checkpoint.resume=" + whole.checkpoint(3)});
  ASSERT_EQ(sharded.exit_code, 0) << sharded.output;
  EXPECT_NEAR(sharded.steps[2].loss / whole.steps[5].loss, 1, 1e-5);
}

TEST(AccelerateConfigs, TellEveryFaultBeforeAnyRankStarts) {
  ParityProgram program(base(), parity_text(1 << 12));
  const ProgramRun run = train(program,
                               "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\n"
                               "fsdp_config: {fsdp_version: 3}\n",
                               {"--virtual", "2"});
  EXPECT_EQ(run.exit_code, 2) << run.output;
  EXPECT_THAT(run.output, HasSubstr(".yaml:2: mixed_precision = bf16"));
  EXPECT_THAT(run.output, HasSubstr(".yaml:3: num_processes = 8"));
  EXPECT_THAT(run.output, HasSubstr(".yaml:4: fsdp_config.fsdp_version = 3"));
}

}  // namespace
}  // namespace yoke::testing
