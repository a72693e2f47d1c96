// Makes plans from Accelerate configs: engine, degrees, batch, precision, and the options of the
// inner backend.
#include "plugins/accelerate_compat/plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/unit/accelerate_compat/plan_request.hpp"

namespace yoke::accelerate_compat::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

const std::string kDdp = "distributed_type: MULTI_CPU\n";
const std::string kFsdp = "distributed_type: FSDP\n";

std::string version_1(const std::string& rest) {
  return kFsdp + "fsdp_config: {fsdp_version: 1, " + rest + "}\n";
}
std::string version_2(const std::string& rest) {
  return kFsdp + "fsdp_config: {fsdp_version: 2, " + rest + "}\n";
}
std::string sizes(int replicate, int shard, int cp, int tp) {
  const std::string p = "parallelism_config_";
  return "parallelism_config: {" + p + "dp_replicate_size: " + std::to_string(replicate) + ", " +
         p + "dp_shard_size: " + std::to_string(shard) + ", " + p +
         "cp_size: " + std::to_string(cp) + ", " + p + "tp_size: " + std::to_string(tp) + "}\n";
}

// ---- Configs that `accelerate config` writes ----

struct Written {
  const char* type;
  const char* more;
  int ranks;
  int replicas;
};

TEST(Plan, AcceptsWhatAccelerateWritesByDefault) {
  const std::string head =
      "compute_environment: LOCAL_MACHINE\ndebug: false\ndowncast_bf16: 'no'\n"
      "enable_cpu_affinity: false\nmachine_rank: 0\nmain_training_function: main\n"
      "mixed_precision: 'no'\nnum_machines: 1\nrdzv_backend: static\nsame_network: true\n"
      "tpu_env: []\ntpu_use_cluster: false\ntpu_use_sudo: false\nuse_cpu: false\n";
  const Written all[] = {
      {"'NO'", "", 1, 1},
      {"MULTI_CPU", "", 2, 2},
      {"MULTI_GPU", "gpu_ids: all\n", 2, 2},
      {"FSDP",
       "fsdp_config:\n  fsdp_activation_checkpointing: false\n"
       "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  fsdp_backward_prefetch: BACKWARD_PRE\n"
       "  fsdp_cpu_ram_efficient_loading: false\n  fsdp_forward_prefetch: false\n"
       "  fsdp_offload_params: false\n  fsdp_reshard_after_forward: FULL_SHARD\n"
       "  fsdp_state_dict_type: FULL_STATE_DICT\n  fsdp_sync_module_states: true\n"
       "  fsdp_use_orig_params: true\n  fsdp_version: 1\n",
       2,
       1},
      {"FSDP",
       "fsdp_config:\n  fsdp_activation_checkpointing: true\n"
       "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
       "  fsdp_cpu_ram_efficient_loading: false\n  fsdp_offload_params: false\n"
       "  fsdp_reshard_after_forward: true\n  fsdp_state_dict_type: SHARDED_STATE_DICT\n"
       "  fsdp_version: 2\n",
       2,
       1}};
  for (const Written& w : all) {
    PlanRequest run(w.ranks,
                    head + "distributed_type: " + w.type +
                        "\nnum_processes: " + std::to_string(w.ranks) + "\n" + w.more);
    EXPECT_THAT(run.ask(), IsEmpty()) << w.type;
    EXPECT_EQ(run.degree(YOKE_DP_REPLICATE), w.replicas) << w.type;
    EXPECT_EQ(run.degree(YOKE_DP_SHARD), w.ranks / w.replicas) << w.type;
    EXPECT_EQ(run.inner_planned, w.replicas < w.ranks) << w.type;
  }
}

TEST(Plan, AcceptsTheConfigsOfTheRepository) {
  const std::string folder = std::string(std::getenv("YOKE_SOURCE")) + "/configs/accelerate";
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream in(entry.path());
    const std::string yaml((std::istreambuf_iterator<char>(in)), {});
    const std::string key = "num_processes: ";
    PlanRequest run(std::stoi(yaml.substr(yaml.find(key) + key.size())), yaml);
    for (const char* precision : {"mixed_precision: bf16", "mixed_precision: fp8"}) {
      if (yaml.find(precision) != yaml.npos) run.plan.plan.param_dtype = YOKE_BF16;
    }
    EXPECT_THAT(run.ask(), Each(StartsWith("note: "))) << entry.path();
    ++count;
  }
  EXPECT_EQ(count, 7);
}

TEST(Plan, WithoutAConfigAllRanksAreReplicas) {
  PlanRequest run(4);
  EXPECT_THAT(run.ask(), IsEmpty());
  EXPECT_EQ(run.degree(YOKE_DP_REPLICATE), 4);
  EXPECT_FALSE(run.inner_planned);
  PlanRequest sharded(4);
  sharded.plan.plan.degree[YOKE_DP_SHARD] = 2;
  EXPECT_THAT(sharded.ask(), IsEmpty());
  EXPECT_EQ(sharded.degree(YOKE_DP_REPLICATE), 2);
  EXPECT_TRUE(sharded.inner_planned);
}

TEST(Plan, OtherTypesAreRefusedByName) {
  EXPECT_THAT(
      ask("distributed_type: DEEPSPEED\n"),
      ElementsAre(AllOf(HasSubstr("parallel_backend = \"accelerate_compat\"; allowed: "
                                  "\"deepspeed_stub\""),
                        HasSubstr("with: yoke config import config_file.file > run.toml"))));
  EXPECT_THAT(ask("distributed_type: MULTI_CPUS\n"),
              ElementsAre(HasSubstr("did you mean 'MULTI_CPU'?")));
  EXPECT_THAT(ask("distributed_type: XLA\n"), ElementsAre(HasSubstr("no other type is supported")));
  EXPECT_THAT(ask("use_cpu: false\n"), ElementsAre(HasSubstr("distributed_type = unset")));
  EXPECT_THAT(ask("distributed_type: NO\n", 1), IsEmpty());
}

// ---- FSDP ----

TEST(Fsdp, StrategiesOfVersion1BecomeDegreesAndReshardAfterForward) {
  struct Case {
    const char* name;
    int shards;
    const char* reshard;
  };
  for (const Case& c : {Case{"FULL_SHARD", 4, "1"},
                        {"SHARD_GRAD_OP", 4, "0"},
                        {"NO_SHARD", 1, "1"},
                        {"HYBRID_SHARD", 2, "1"},
                        {"HYBRID_SHARD_ZERO2", 2, "0"},
                        {"2", 4, "0"},
                        {"full_shard", 4, "1"}}) {
    for (const char* key : {"fsdp_sharding_strategy: ", "fsdp_reshard_after_forward: "}) {
      PlanRequest run(4, version_1(std::string(key) + c.name) + "num_machines: 2\n");
      EXPECT_THAT(run.ask(), IsEmpty()) << key << c.name;
      EXPECT_EQ(run.degree(YOKE_DP_SHARD), c.shards) << c.name;
      EXPECT_EQ(run.degree(YOKE_DP_REPLICATE), 4 / c.shards) << c.name;
      EXPECT_EQ(run.inner_options["reshard_after_forward"], c.reshard) << c.name;
    }
  }
}

TEST(Fsdp, TwoNamesOfVersion1MustAgree) {
  EXPECT_THAT(
      ask(version_1("fsdp_sharding_strategy: FULL_SHARD, fsdp_reshard_after_forward: NO_SHARD")),
      ElementsAre(AllOf(HasSubstr("fsdp_reshard_after_forward = NO_SHARD; allowed: FULL_SHARD"),
                        HasSubstr("which Accelerate would silently take"))));
  EXPECT_THAT(ask(version_1("fsdp_sharding_strategy: SHARD_GRAD")),
              ElementsAre(HasSubstr("did you mean 'SHARD_GRAD_OP'?")));
}

TEST(Fsdp, HybridOnOneMachineTakesTheRunsReplicas) {
  PlanRequest run(4, version_1("fsdp_sharding_strategy: HYBRID_SHARD"));
  run.plan.plan.degree[YOKE_DP_REPLICATE] = 2;
  EXPECT_THAT(run.ask(), IsEmpty());
  EXPECT_EQ(run.degree(YOKE_DP_SHARD), 2);
}

TEST(Fsdp, Version2HasBooleansAndNoStrategies) {
  PlanRequest run(2, version_2("fsdp_reshard_after_forward: no"));
  EXPECT_THAT(run.ask(), IsEmpty());
  EXPECT_EQ(run.inner_options["reshard_after_forward"], "0");
  EXPECT_THAT(
      ask(version_2("fsdp_reshard_after_forward: FULL_SHARD")),
      ElementsAre(HasSubstr("fsdp_reshard_after_forward = FULL_SHARD; allowed: true, false")));
  EXPECT_THAT(ask(version_2("fsdp_sharding_strategy: NO_SHARD")),
              ElementsAre(HasSubstr("fsdp_sharding_strategy = NO_SHARD; allowed: unset")));
  EXPECT_THAT(ask(version_2("fsdp_forward_prefetch: true")),
              ElementsAre(HasSubstr("fsdp_forward_prefetch = true; allowed: false")));
  EXPECT_THAT(ask(version_2("fsdp_state_dict_type: LOCAL_STATE_DICT")),
              ElementsAre(HasSubstr("allowed: SHARDED_STATE_DICT, FULL_STATE_DICT")));
}

TEST(Fsdp, WrapPoliciesBecomeUnits) {
  const auto unit_bytes = [](const std::string& policy) {
    PlanRequest run(2, version_2("fsdp_auto_wrap_policy: " + policy));
    EXPECT_THAT(run.ask(), IsEmpty()) << policy;
    return run.inner_options["unit_bytes"];
  };
  EXPECT_EQ(unit_bytes("TRANSFORMER_BASED_WRAP"), "1048576") << "the default of ptd";
  EXPECT_EQ(unit_bytes("NO_WRAP"), "1000000000000");
  EXPECT_EQ(unit_bytes("SIZE_BASED_WRAP, fsdp_min_num_params: 100"), "400") << "fp32";
  EXPECT_THAT(ask(version_2("fsdp_auto_wrap_policy: MY_WRAP")),
              ElementsAre(HasSubstr("TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP, NO_WRAP")));
}

TEST(Fsdp, KeysWithoutFsdpAreRefused) {
  EXPECT_THAT(ask(kDdp + "fsdp_config: {fsdp_version: 2, fsdp_activation_checkpointing: true}\n"),
              UnorderedElementsAre(HasSubstr("config_file.file:2: fsdp_config.fsdp_version = 2"),
                                   HasSubstr("fsdp_config.fsdp_activation_checkpointing = true")));
  EXPECT_THAT(ask(kDdp + "fsdp_config: {}\n"), IsEmpty());
}

TEST(Fsdp, TheRunFilesOptionsOfTheInnerBackendMayRepeatTheConfig) {
  PlanRequest run(2, version_2("fsdp_reshard_after_forward: false"));
  run.inner_given = {{"reshard_after_forward", "1"}, {"unit_bytes", "7"}};
  EXPECT_THAT(run.ask(),
              ElementsAre(AllOf(HasSubstr("ptd.reshard_after_forward = true; allowed: false"),
                                HasSubstr("config_file.file:2: "))));
  EXPECT_EQ(run.inner_options["unit_bytes"], "7");
}

// ---- ParallelismConfig ----

TEST(Parallelism, SizesBecomeDegrees) {
  PlanRequest run(8, version_2("fsdp_reshard_after_forward: true") + sizes(2, 2, 1, 2));
  EXPECT_THAT(run.ask(), IsEmpty());
  EXPECT_EQ(run.degree(YOKE_DP_REPLICATE), 2);
  EXPECT_EQ(run.degree(YOKE_DP_SHARD), 2);
  EXPECT_EQ(run.degree(YOKE_TP), 2);
  EXPECT_EQ(run.degree(YOKE_CP), 1);
  PlanRequest ones(4, version_2("fsdp_reshard_after_forward: true") + sizes(1, 1, 1, 1));
  EXPECT_THAT(ones.ask(), IsEmpty());
  EXPECT_EQ(ones.degree(YOKE_DP_SHARD), 4);
}

TEST(Parallelism, AcceptsWithANoteWhatOnlyAccelerateRefuses) {
  const std::string v2 = version_2("fsdp_reshard_after_forward: true");
  EXPECT_THAT(ask(v2 + sizes(2, 1, 1, 2), 4),
              ElementsAre(AllOf(StartsWith("note: "),
                                HasSubstr("tp_size = 2"),
                                HasSubstr("Accelerate refuses it with replicas but no shards"))));
  EXPECT_THAT(ask(kDdp + sizes(1, 1, 2, 1)),
              ElementsAre(AllOf(StartsWith("note: "), HasSubstr("here it works without"))));
  EXPECT_THAT(ask(v2 + sizes(1, 1, 1, 2)), IsEmpty()) << "tensor parallelism alone";
}

TEST(Parallelism, TheExchangeOfKeysAndValuesIsPassedOn) {
  const std::string cp = version_2("fsdp_reshard_after_forward: true") +
                         "parallelism_config: {parallelism_config_cp_size: 2, "
                         "parallelism_config_cp_comm_strategy: ";
  for (const auto& [word, option] : {std::pair{"allgather", "all_gather"}, {"alltoall", "ring"}}) {
    PlanRequest run(2, cp + word + "}\n");
    EXPECT_THAT(run.ask(), IsEmpty()) << word;
    EXPECT_EQ(run.inner_options["cp_attention"], option) << word;
  }
  EXPECT_THAT(ask(cp + "ring}\n"), ElementsAre(HasSubstr("= ring; allowed: allgather, alltoall")));
}

TEST(Parallelism, RefusesWhatCannotBeCombined) {
  const std::string v2 = version_2("fsdp_reshard_after_forward: true");
  EXPECT_THAT(ask(version_1("fsdp_use_orig_params: true") + sizes(1, 2, 1, 1)),
              ElementsAre(HasSubstr("fsdp_version = 1; allowed: 2; parallelism_config needs")));
  EXPECT_THAT(ask(kDdp + sizes(1, 2, 1, 1)),
              ElementsAre(HasSubstr("dp_shard_size = 2; allowed: 1; shards need")));
  EXPECT_THAT(ask("distributed_type: NO\n" + sizes(2, 1, 1, 1)),
              ElementsAre(HasSubstr("NO means one rank")));
  EXPECT_THAT(ask(v2 + sizes(0, 2, 1, 1)),
              ElementsAre(HasSubstr("dp_replicate_size = 0; allowed: 1")));
  EXPECT_THAT(ask(v2 + sizes(2, 2, 1, 2), 4),
              ElementsAre(AllOf(
                  HasSubstr("dp_replicate 2 x dp_shard 2 x cp 1 x tp 2 = 8, but the run has 4"),
                  HasSubstr("--nproc 8"))));
}

TEST(Parallelism, TheRunMayAddDegreesThatTheConfigLeavesOpen) {
  PlanRequest run(4, version_2("fsdp_reshard_after_forward: true"));
  run.plan.plan.degree[YOKE_TP] = 2;
  EXPECT_THAT(run.ask(), IsEmpty());
  EXPECT_EQ(run.degree(YOKE_DP_SHARD), 2);
}

TEST(Parallelism, TheRunMayRepeatADegreeButNotChangeIt) {
  PlanRequest run(4, version_2("fsdp_reshard_after_forward: true") + sizes(1, 2, 1, 2));
  run.plan.plan.degree[YOKE_TP] = 4;
  run.plan.plan.degree[YOKE_DP_SHARD] = 2;
  EXPECT_THAT(run.ask(),
              ElementsAre(AllOf(HasSubstr("tp_degree = 4; allowed: 2 or unset"),
                                HasSubstr("parallelism_config_tp_size = 2 requires otherwise"))));
  PlanRequest ddp(4, kDdp);
  ddp.plan.plan.degree[YOKE_DP_SHARD] = 4;
  EXPECT_THAT(ddp.ask(),
              ElementsAre(AllOf(HasSubstr("dp_shards = 4; allowed: 1 or unset"),
                                HasSubstr("distributed_type = MULTI_CPU requires otherwise"))));
}

// ---- Batch and precision; the global batch is 8 ----

TEST(Batch, AccumulationFillsTheMicroBatch) {
  PlanRequest run(2, kDdp + "gradient_accumulation_steps: 2\n");
  EXPECT_THAT(run.ask(), IsEmpty());
  EXPECT_EQ(run.plan.plan.micro_batch, 2);
  EXPECT_THAT(ask(kDdp + "gradient_accumulation_steps: 3\n"),
              ElementsAre(HasSubstr("train.global_batch 8 / (2 data ranks x 3 steps) leaves a "
                                    "remainder of 2")));
  EXPECT_THAT(ask(kDdp + "gradient_accumulation_steps: 0\n"),
              ElementsAre(HasSubstr("allowed: 1 to 8")));
  PlanRequest other(2, kDdp + "gradient_accumulation_steps: 2\n");
  other.plan.plan.micro_batch = 4;
  EXPECT_THAT(other.ask(),
              ElementsAre(AllOf(HasSubstr("gradient_accumulation_steps = 2; allowed: 1"),
                                HasSubstr("train.micro_batch = 4"))));
}

TEST(Batch, TensorParallelRanksAreNotDataRanks) {
  PlanRequest run(4,
                  version_2("fsdp_reshard_after_forward: true") + sizes(1, 2, 1, 2) +
                      "gradient_accumulation_steps: 2\n");
  EXPECT_THAT(run.ask(), IsEmpty());
  EXPECT_EQ(run.plan.plan.micro_batch, 2);
}

TEST(Precision, MustMatchTheRun) {
  EXPECT_THAT(ask(kDdp + "mixed_precision: bf16\n"),
              ElementsAre(AllOf(HasSubstr("mixed_precision = bf16; allowed: \"no\" (fp32)"),
                                HasSubstr("precision.param=bf16"))));
  PlanRequest run(2, version_2("fsdp_reshard_after_forward: true") + "mixed_precision: bf16\n");
  run.plan.plan.param_dtype = YOKE_BF16;
  run.plan.plan.reduce_dtype = YOKE_F32;
  EXPECT_THAT(run.ask(), ElementsAre(HasSubstr("Accelerate reduces them in bf16")));
  PlanRequest ddp(2, kDdp + "mixed_precision: bf16\n");
  ddp.plan.plan.param_dtype = YOKE_BF16;
  EXPECT_THAT(ddp.ask(), IsEmpty());
  EXPECT_EQ(ddp.plan.plan.reduce_dtype, YOKE_BF16) << "DDP reduces in the dtype of the parameters";
  PlanRequest wide(2, kDdp + "mixed_precision: 'no'\n");
  wide.plan.plan.param_dtype = YOKE_F64;
  EXPECT_THAT(wide.ask(), IsEmpty());
}

// ---- The inner backend ----

TEST(InnerBackend, ItsRefusalsAndItsAbsenceAreReported) {
  PlanRequest run(2, version_2("fsdp_reshard_after_forward: true"));
  run.inner_refuses = true;
  EXPECT_THAT(run.ask(), ElementsAre("tp_degree = 3; allowed: 1, 2; of the heads"));
  PlanRequest sized(3, version_2("fsdp_reshard_after_forward: true") + sizes(1, 1, 1, 3));
  sized.inner_refuses = true;
  EXPECT_THAT(sized.ask(),
              ElementsAre(HasSubstr("of the heads; set by config_file.file:3: parallelism_config."
                                    "parallelism_config_tp_size")));
  run.inner_exists = false;
  EXPECT_THAT(run.ask(), ElementsAre(HasSubstr("backend 'ptd' not found")));
  run.plan.extensions = nullptr;
  EXPECT_THAT(run.ask(), ElementsAre(HasSubstr("yoke.backends/1")));
}

TEST(InnerBackend, NotesThatOptionsOfDdpHaveNoEffect) {
  PlanRequest run(2, version_2("fsdp_reshard_after_forward: true"));
  run.plan.options["bucket_cap_mb"] = "1";
  EXPECT_THAT(run.ask(), ElementsAre(StartsWith("note: accelerate_compat.bucket_cap_mb = 1")));
}

// ---- Translation into a run file ----

TEST(Translation, EveryHonouredKeyHasALineOfARunFile) {
  PlanRequest run(
      8,
      version_2("fsdp_reshard_after_forward: false, fsdp_activation_checkpointing: true") +
          sizes(2, 2, 1, 2) + "mixed_precision: 'no'\ngradient_accumulation_steps: 2\n");
  EXPECT_THAT(run.ask(), IsEmpty());
  EXPECT_THAT(run.lines,
              ::testing::IsSupersetOf(
                  {HasSubstr(":1: distributed_type = FSDP -> parallel_backend = \"ptd\""),
                   HasSubstr("tp_size = 2 -> tp_degree = 2"),
                   HasSubstr("cp_size = 1 -> cp_degree = 1"),
                   HasSubstr("reshard_after_forward = false -> ptd.reshard_after_forward = false"),
                   HasSubstr("checkpointing = true -> ptd.activation_checkpoint = \"full\""),
                   HasSubstr("mixed_precision = no -> precision.param = \"fp32\""),
                   HasSubstr("gradient_accumulation_steps = 2 -> train.micro_batch = 1")}));
  PlanRequest ddp(2, kDdp + "num_processes: 2\n");
  EXPECT_THAT(ddp.ask(), IsEmpty());
  EXPECT_THAT(ddp.lines,
              UnorderedElementsAre(HasSubstr("-> parallel_backend = \"accelerate_compat\""),
                                   HasSubstr("-> dp_degree = 2")));
}

}  // namespace
}  // namespace yoke::accelerate_compat::testing
