// Runs the real program with config files of Accelerate. Each run trains like the plain loop, a
// resumed run equals the uninterrupted one, and errors are reported before any rank starts.
#include <gmock/gmock.h>

#include "tests/ranks/parity_layouts.hpp"
#include "tests/support/temp_folder.hpp"

namespace yoke::testing {
namespace {

using ::testing::HasSubstr;

constexpr const char* kBackend = "accelerate_compat";
const std::string kDdp = "distributed_type: MULTI_CPU\n";
const std::string kFsdp =
    "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, fsdp_auto_wrap_policy: "
    "SIZE_BASED_WRAP, fsdp_min_num_params: 1}\n";

// Writes the config to a file and returns the argument that names it.
std::string config(const std::string& yaml) {
  static const TempFolder folder;
  static int files = 0;
  const std::string name = "accelerate" + std::to_string(files++) + ".yaml";
  return "accelerate_compat.config_file=" + folder.write(name, yaml);
}

std::string sizes(int replicate, int shard, int cp, int tp) {
  const std::string p = "parallelism_config_";
  const auto size = [&](const char* axis, int n) {
    return p + axis + "_size: " + std::to_string(n);
  };
  return "parallelism_config: {" + size("dp_replicate", replicate) + ", " +
         size("dp_shard", shard) + ", " + size("cp", cp) + ", " + size("tp", tp) + "}\n";
}

// DDP reduces once per step, or after each micro-batch. The search for unused parameters
// additionally reduces one number for each parameter.
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
                config(kDdp + "gradient_accumulation_steps: 2\n"),
                "accelerate_compat.bucket_cap_mb=1"},
               kBase,
               {"dp_replicate", 1, 1}},
        Layout{"ddp_2_accumulation_4_sync_each_batch",
               kBackend,
               {"--virtual",
                "2",
                config(kDdp + "gradient_accumulation_steps: 4\n"),
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
            {"dp_replicate", 0.5, 0.5}},
        Layout{"tp_2_inside_2_shards_processes",
               kBackend,
               {"--nproc", "4", config(kFsdp + sizes(1, 2, 1, 2))},
               kBase,
               {"tp", 0.1, 100}},
        Layout{"tp_2_inside_2_replicas_without_shards",
               kBackend,
               {"--virtual", "4", config(kDdp + sizes(2, 1, 1, 2))},
               kBase,
               {"tp", 0.1, 100}},
        Layout{"cp_2_alone",
               kBackend,
               {"--nproc", "2", config(kFsdp + sizes(1, 1, 2, 1))},
               kBase,
               {"cp", 0.1, 100}},
        Layout{"cp_2_inside_2_shards_checkpointing",
               kBackend,
               {"--virtual",
                "4",
                config("distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, "
                       "fsdp_activation_checkpointing: true}\n" +
                       sizes(1, 2, 2, 1))},
               kBase,
               {"cp", 0.1, 100}}),
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
                               kDdp + "mixed_precision: bf16\n",
                               {"--virtual", "2", "precision.param=bf16", "precision.reduce=bf16"});
  ASSERT_EQ(run.exit_code, 0) << run.output;
  EXPECT_NEAR(run.steps[0].loss / expected.loss[0], 1, 2e-3);
  EXPECT_NEAR(run.steps[59].loss / expected.loss[59], 1, 0.01);
}

TEST(AccelerateDdp, AResumedRunEqualsTheUninterruptedRun) {
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

  // A run that resumes from the same checkpoint with a different strategy has the same losses up
  // to rounding.
  const ProgramRun sharded =
      train(program, kFsdp, {"--virtual", "2", "checkpoint.resume=" + whole.checkpoint(3)});
  ASSERT_EQ(sharded.exit_code, 0) << sharded.output;
  EXPECT_NEAR(sharded.steps[2].loss / whole.steps[5].loss, 1, 1e-5);
}

// Uses eight ranks and every key that occurs in Accelerate's examples.
TEST(AccelerateConfigs, OfItsExamplesForManyAxesRunAsTheyAre) {
  const std::string head =
      "compute_environment: LOCAL_MACHINE\ndebug: false\ndistributed_type: FSDP\n"
      "downcast_bf16: 'no'\nenable_cpu_affinity: false\nmachine_rank: 0\n"
      "main_training_function: main\nmixed_precision: bf16\nnum_machines: 1\nnum_processes: 8\n"
      "rdzv_backend: static\nsame_network: true\ntpu_env: []\ntpu_use_cluster: false\n"
      "tpu_use_sudo: false\nuse_cpu: false\n";
  const auto fsdp = [](const char* checkpointing) {
    return std::string("fsdp_config:\n  fsdp_activation_checkpointing: ") + checkpointing +
           "\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
           "  fsdp_cpu_ram_efficient_loading: false\n  fsdp_offload_params: false\n"
           "  fsdp_reshard_after_forward: true\n  fsdp_state_dict_type: SHARDED_STATE_DICT\n"
           "  fsdp_version: 2\n";
  };
  const PlainRun plain = base();
  const auto text = parity_text(1 << 15);
  const PlainResult expected = train_plain(plain, text);
  ParityProgram program(plain, text);
  for (const std::string& yaml :
       {head + fsdp("false") + sizes(2, 2, 1, 2), head + fsdp("true") + sizes(1, 1, 8, 1)}) {
    const ProgramRun run =
        train(program, yaml, {"--virtual", "8", "precision.param=bf16", "precision.reduce=fp32"});
    ASSERT_EQ(run.exit_code, 0) << run.output;
    for (const size_t s : {0u, 19u})
      EXPECT_NEAR(run.steps.at(s).loss / expected.loss[s], 1, 0.01) << run.output;
  }
}

TEST(AccelerateConfigs, ReportEveryErrorBeforeAnyRankStarts) {
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
