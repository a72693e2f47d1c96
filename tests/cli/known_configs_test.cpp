// Imports files that say the same as the configuration files in the repositories of DeepSpeed
// (edaa722) and Accelerate (16cb6eb). Each is translated as a whole, or refused with exactly the
// keys that the README of the backend lists. Either way an import names every key of the file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/imported_keys.hpp"
#include "tests/cli/playground.hpp"

namespace yoke {
namespace {

using ::testing::HasSubstr;
using testing::Playground;

struct KnownFile {
  std::string name;  // its extension selects the backend
  std::string text;
  std::vector<std::string> refused{};  // keys
};

std::string object(const std::vector<std::string>& members) {
  std::string text = "{";
  for (const std::string& member : members) text += (text.size() > 1 ? ", " : "") + member;
  return text + "}";
}

// ---- DeepSpeed ----

const std::string kDynamicScale =
    R"("loss_scale": 0, "loss_scale_window": 1000, "hysteresis": 2, "min_loss_scale": 1)";
const std::string kScale16 = kDynamicScale + R"(, "initial_scale_power": 16)";
const std::string kFp16 = R"("fp16": {"enabled": true, )" + kDynamicScale + "}";
const std::string kBert =
    R"("train_batch_size": 24, "train_micro_batch_size_per_gpu": 3, "gradient_clipping": 1.0,
       "steps_per_print": 1, "optimizer": {"type": "Adam", "params": {"lr": 3e-5,
       "weight_decay": 0.0, "bias_correction": false}})";
const std::string kSevenMillion =
    R"(, "reduce_bucket_size": 7000000, "allgather_bucket_size": 7000000, "reduce_scatter": true)";
const std::string kCheckpointing =
    R"("activation_checkpointing": {"partition_activations": true,
                                    "contiguous_memory_optimization": true})";

// A test of DeepSpeed with Megatron's GPT-2. batch: its keys; zero: the section without braces.
std::string gpt2(const std::string& batch,
                 const std::string& zero,
                 const std::vector<std::string>& more = {}) {
  std::vector<std::string> members{batch,
                                   R"("zero_optimization": {)" + zero + "}",
                                   R"("gradient_clipping": 1.0, "steps_per_print": 1)",
                                   kFp16};
  members.insert(members.end(), more.begin(), more.end());
  return object(members);
}

std::string one_step(int batch) {
  return R"("train_batch_size": )" + std::to_string(batch) +
         R"(, "gradient_accumulation_steps": 1)";
}
const std::string kThreeSteps =
    R"("train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 3)";

std::string compiled(const std::string& zero, const std::vector<std::string>& more = {}) {
  std::vector<std::string> members{
      R"("train_batch_size": 8, "steps_per_print": 2000, "gradient_clipping": 1.0,
         "prescale_gradients": false, "wall_clock_breakdown": false, "bf16": {"enabled": true},
         "optimizer": {"type": "Adam", "params": {"lr": 0.001, "betas": [0.8, 0.999], "eps": 1e-8,
                                                  "weight_decay": 3e-7}},
         "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 0.001,
                                                      "warmup_num_steps": 1000}})",
      R"("zero_optimization": {"overlap_comm": false, "contiguous_gradients": false, )" + zero +
          "}"};
  members.insert(members.end(), more.begin(), more.end());
  return object(members);
}

std::vector<KnownFile> gpt2_files() {
  const std::string on_cpu = kSevenMillion + R"(, "cpu_offload": true)";
  const std::string no_gather = R"("disable_allgather": true)";
  return {
      {"gpt2_bs4_zero1.json", gpt2(one_step(4), R"("stage": 1)")},
      {"gpt2_bs4_zero2.json", gpt2(one_step(4), R"("stage": 2)" + kSevenMillion)},
      {"gpt2_bs4_zero2_offload.json", gpt2(one_step(4), R"("stage": 2)" + on_cpu)},
      {"gpt2_bs8_no_zero.json", gpt2(one_step(8), R"("stage": 0)")},
      {"gpt2_bs8_zero0_gas3.json",
       gpt2(kThreeSteps, R"("stage": 0)" + kSevenMillion, {kCheckpointing})},
      {"gpt2_bs8_zero1.json", gpt2(one_step(8), R"("stage": 1)")},
      {"gpt2_bs8_zero2.json", gpt2(one_step(8), R"("stage": 2)" + kSevenMillion, {kCheckpointing})},
      {"gpt2_bs8_zero2_gas3.json", gpt2(kThreeSteps, R"("stage": 2)" + kSevenMillion)},
      {"gpt2_bs8_zero2_offload.json",
       gpt2(one_step(8), R"("stage": 2)" + on_cpu, {kCheckpointing})},
      {"gpt2_scheduler.json",
       gpt2(one_step(4),
            R"("stage": 2)",
            {R"("scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0,
                              "warmup_max_lr": 0.001, "warmup_num_steps": 10}})"})},
      {"gpt2_perf_bs8.json", gpt2(one_step(8), R"("stage": 1)", {no_gather})},
      {"gpt2_perf_bs16.json", gpt2(one_step(16), R"("stage": 1)", {no_gather})},
      {"gpt2_perf_bs32.json", gpt2(one_step(32), R"("stage": 1)", {no_gather})}};
}

std::vector<KnownFile> bert_files() {
  const std::string fp16 = R"("fp16": {"enabled": true})";
  return {{"bert_fp16.json", object({kBert, fp16, R"("zero_optimization": {"stage": 1})"})},
          {"bert_fp16_zero2.json", object({kBert, fp16, R"("zero_optimization": {"stage": 2})"})},
          {"bert_fp32.json", object({kBert, R"("fp16": {"enabled": false})"})},
          {"bert_eigenvalue_quantize.json",
           object({kBert,
                   fp16,
                   R"("tensorboard": {"enabled": true, "output_path": "/tmp/q", "job_name": "q"},
                      "eigenvalue": {"enabled": true, "verbose": true, "max_iter": 50, "tol": 1e-2,
                                     "stability": 0, "gas_boundary_resolution": 1},
                      "quantize_training": {"quantize_type": "symmetric", "quantize_groups": 16})"}),
           {"eigenvalue.enabled", "quantize_training"}}};
}

std::vector<KnownFile> other_deepspeed_files() {
  const std::string tuned =
      R"(, "allgather_partitions": true, "allgather_bucket_size": 5e8, "overlap_comm": false,
         "reduce_scatter": true, "reduce_bucket_size": 5e8, "contiguous_gradients": false)";
  const std::string live =
      R"(, "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9,
         "sub_group_size": 1e12)";
  return {{"tuning_zero0.json", R"({"zero_optimization": {"stage": 0}})"},
          {"tuning_zero1.json",
           R"({"zero_optimization": {"stage": 1, "reduce_bucket_size": 5e8,
                                 "allgather_bucket_size": 5e8}})"},
          {"tuning_zero2.json", R"({"zero_optimization": {"stage": 2)" + tuned + "}}"},
          {"tuning_zero3.json",
           R"({"zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": 5e8,
           "stage3_param_persistence_threshold": 1e6,
           "stage3_gather_16bit_weights_on_model_save": false)" +
               tuned + live + "}}"},
          {"allgather_zero3.json",
           R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1,
           "steps_per_print": 10, "gradient_clipping": 1.0, "wall_clock_breakdown": false,
           "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9, 0.999], "eps": 1e-8,
                                                     "weight_decay": 0.01}},
           "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 1e-5,
                                                        "warmup_num_steps": 10}},
           "bf16": {"enabled": true}, "zero_optimization": {"stage": 3, "overlap_comm": true,
           "stage3_prefetch_bucket_size": 5e7, "stage3_param_persistence_threshold": 1e5)" +
               live + "}}"},
          {"accelerator.json",
           R"({"train_batch_size": 1, "gradient_accumulation_steps": 1, "steps_per_print": 1,
           "optimizer": {"type": "Adam", "params": {"lr": 0.00015, "weight_decay": 1e-2}},
           "fp16": {"enabled": false, )" +
               kDynamicScale + "}}"},
          {"hybrid_engine.json",
           R"({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 2, "steps_per_print": 10,
           "zero_optimization": {"stage": 0, "offload_param": {"device": "cpu"},
                                 "stage3_param_persistence_threshold": 0},
           "fp16": {"enabled": true, "loss_scale_window": 100}, "gradient_clipping": 1.0,
           "prescale_gradients": false, "wall_clock_breakdown": false})"},
          {"compile_z2.json", compiled(R"("stage": 2)")},
          {"compile_z3.json", compiled(R"("stage": 3, "reduce_scatter": true)")},
          {"compile_z3_deepcompile.json",
           compiled(R"("stage": 3, "reduce_scatter": true, "stage3_param_persistence_threshold": 0,
                   "stage3_model_persistence_threshold": 0)",
                    {R"("compile": {"deepcompile": true})"}),
           {"compile.deepcompile"}},
          {"batch.json",
           R"({"train_batch_size": 2, "gradient_accumulation_steps": 1, "gradient_clipping": 1.0,
           "optimizer": {"type": "Adam", "params": {"lr": 0.00015}},
           "fp16": {"enabled": true, "loss_scale": 0}})"}};
}

// ---- Files of DeepSpeed in Accelerate's repository ----

const std::string kAutoBatch =
    R"("train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
       "gradient_accumulation_steps": 1, "gradient_clipping": "auto", "steps_per_print": 2000,
       "wall_clock_breakdown": false)";
const std::string kTemplateFp16 = R"("fp16": {"enabled": true, )" + kScale16 + "}";
const std::string kAutoDtypes =
    R"("bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto", )" + kScale16 + "}";
const std::string kAutoOptimizer =
    R"("optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto",
                                                 "torch_adam": true, "adam_w_mode": true}})";
const std::string kFlat =
    R"("allgather_partitions": true, "allgather_bucket_size": 2e8, "overlap_comm": true,
       "reduce_scatter": true, "reduce_bucket_size": "auto", "contiguous_gradients": true)";
const std::string kSliced =
    R"("stage": 3, "overlap_comm": true, "contiguous_gradients": true, "sub_group_size": 1e9,
       "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
       "stage3_param_persistence_threshold": "auto", "stage3_max_live_parameters": 1e9,
       "stage3_max_reuse_distance": 1e9, "stage3_gather_16bit_weights_on_model_save": "auto")";
const std::string kOptimizerOnCpu =
    R"(, "offload_optimizer": {"device": "cpu", "pin_memory": true})";
const std::string kParamsOnCpu = R"(, "offload_param": {"device": "cpu", "pin_memory": true})";

std::string zero(const std::string& keys) {
  return R"("zero_optimization": {)" + keys + "}";
}

std::string scheduler(const std::string& type, const std::string& more) {
  return R"("scheduler": {"type": ")" + type + R"(", "params": {"warmup_min_lr": "auto",
             "warmup_max_lr": "auto", "warmup_num_steps": "auto")" +
         more + "}}";
}

std::vector<KnownFile> template_files() {
  const std::string decay = scheduler("WarmupDecayLR", R"(, "total_num_steps": "auto")");
  const std::string warmup = scheduler("WarmupLR", "");
  const auto make = [&](const std::string& keys) {
    return object({kTemplateFp16, kAutoOptimizer, decay, kAutoBatch, zero(keys)});
  };
  const auto make_test = [&](const std::string& keys) {
    return object({kAutoDtypes, kAutoOptimizer, warmup, kAutoBatch, zero(keys)});
  };
  const std::string stage2 = R"("stage": 2, )" + kFlat;
  return {{"zero_stage1.json", make(R"("stage": 1, )" + kFlat)},
          {"zero_stage2.json", make(stage2)},
          {"zero_stage2_offload.json", make(stage2 + kOptimizerOnCpu)},
          {"zero_stage3.json", make(kSliced)},
          {"zero_stage3_offload.json", make(kSliced + kOptimizerOnCpu + kParamsOnCpu)},
          {"test_zero2.json", make_test(stage2 + kOptimizerOnCpu)},
          {"test_zero2_model_only.json",
           object({kAutoDtypes, kAutoBatch, zero(stage2 + kOptimizerOnCpu)})},
          {"test_zero3.json", make_test(kSliced + kOptimizerOnCpu + kParamsOnCpu)},
          {"test_zero3_model_only.json",
           object({kAutoDtypes,
                   R"("train_micro_batch_size_per_gpu": 1)",
                   zero(R"("stage": 3, "overlap_comm": true, "sub_group_size": 1e9,
                       "reduce_bucket_size": 1e9, "stage3_prefetch_bucket_size": 1e9,
                       "stage3_param_persistence_threshold": 1e9)" +
                        kParamsOnCpu)})},
          {"alst.json",
           R"({"bf16": {"enabled": true}, "zero_optimization": {"stage": 3},
           "gradient_accumulation_steps": 1, "train_batch_size": "auto",
           "train_micro_batch_size_per_gpu": "auto",
           "seq_parallel_communication_data_type": "bf16"})"}};
}

// ---- Accelerate ----

const std::string kLocal =
    "compute_environment: LOCAL_MACHINE\nmachine_rank: 0\nmain_training_function: main\n"
    "use_cpu: false\n";
const std::string kStatic =
    "rdzv_backend: static\nsame_network: true\ntpu_env: []\ntpu_use_cluster: false\n"
    "tpu_use_sudo: false\ndowncast_bf16: 'no'\ndebug: false\n";
const std::string kFsdp1 =
    "  fsdp_activation_checkpointing: false\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
    "  fsdp_backward_prefetch: BACKWARD_PRE\n  fsdp_cpu_ram_efficient_loading: true\n"
    "  fsdp_forward_prefetch: false\n  fsdp_offload_params: false\n"
    "  fsdp_sharding_strategy: FULL_SHARD\n  fsdp_state_dict_type: SHARDED_STATE_DICT\n"
    "  fsdp_sync_module_states: true\n  fsdp_use_orig_params: true\n";

std::string ranks(int number) {
  return "num_machines: 1\nnum_processes: " + std::to_string(number) + "\n";
}

// A config with FSDP version 2 and the sizes of ParallelismConfig.
std::string parallel(bool recomputes, const std::string& sizes) {
  return kLocal + kStatic + ranks(8) + "distributed_type: FSDP\nmixed_precision: bf16\n" +
         "enable_cpu_affinity: false\nfsdp_config:\n  fsdp_version: 2\n  "
         "fsdp_activation_checkpointing: " +
         (recomputes ? "true" : "false") +
         "\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
         "  fsdp_cpu_ram_efficient_loading: false\n  fsdp_offload_params: false\n"
         "  fsdp_reshard_after_forward: true\n  fsdp_state_dict_type: SHARDED_STATE_DICT\n"
         "parallelism_config: " +
         sizes + "\n";
}

std::vector<KnownFile> accelerate_templates() {
  const std::string deepspeed =
      "distributed_type: DEEPSPEED\ndeepspeed_config:\n"
      "  zero3_init_flag: false\n  deepspeed_config_file: ";
  return {
      {"deepspeed.yaml", deepspeed + "zero_stage1.json\nnum_processes: 2\n"},
      {"alst.yaml", deepspeed + "alst.json\n" + kLocal + ranks(4)},
      {"fp8.yaml",
       "distributed_type: \"NO\"\nmixed_precision: fp8\nfp8_config:\n  backend: TE\n"
       "  amax_history_len: 1024\n  fp8_format: E4M3\n  interval: 1\n  margin: 0\n"
       "  override_linear_precision: [false, false, false]\n  use_autocast_during_eval: false\n",
       {"fp8_config.backend"}},
      {"fsdp.yaml",
       "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 2\nfsdp_config:\n" + kFsdp1},
      {"fsdp_slurm.yaml", "distributed_type: FSDP\nfsdp_config:\n" + kFsdp1},
      {"multi_gpu.yaml", "distributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_processes: 2\n"},
      {"multi_node.yaml",
       "distributed_type: MULTI_GPU\nmachine_rank: 0\nmain_process_ip: '1234'\n"
       "main_process_port: 9999\nnum_machines: 2\nnum_processes: 8\nrdzv_backend: static\n"
       "same_network: false\n"},
      {"multi_xpu.yaml",
       "distributed_type: MULTI_XPU\nmixed_precision: bf16\nnum_processes: 2\n",
       {"distributed_type"}},
      {"single.yaml", "distributed_type: \"NO\"\nmixed_precision: bf16\n"},
      {"cp.yaml",
       parallel(true,
                "{parallelism_config_cp_size: 8, parallelism_config_dp_replicate_size: 1, "
                "parallelism_config_dp_shard_size: 1, parallelism_config_tp_size: 1}")},
      {"tp_hsdp.yaml",
       parallel(false,
                "{parallelism_config_cp_size: 1, parallelism_config_dp_replicate_size: 2, "
                "parallelism_config_dp_shard_size: 2, parallelism_config_tp_size: 2}")}};
}

std::vector<KnownFile> accelerate_tests() {
  const std::string old =
      kLocal + ranks(1) +
      "deepspeed_config: {}\nfsdp_config: {}\ndistributed_type: 'NO'\nmixed_precision: 'no'\n"
      "main_process_ip: null\nmain_process_port: null\n";
  return {
      {"0_11_0.yaml", old},
      {"0_12_0.yaml", old + "downcast_bf16: 'no'\n"},
      {"latest.yaml",
       old + "downcast_bf16: 'no'\ngpu_ids: all\nmegatron_lm_config: {}\nrdzv_backend: static\n"
             "same_network: true\ntpu_name: t\ntpu_zone: z\ncommands: null\ncommand_file: c.sh\n"},
      {"invalid_keys.yaml", old + "one_key: a\nother_key: b\n", {"one_key", "other_key"}},
      {"mpi.yaml",
       "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_CPU\nmachine_rank: 0\n"
       "main_process_ip: 127.0.0.1\nmain_process_port: 29500\nmixed_precision: 'no'\n"
       "mpirun_config: {mpirun_hostfile: /hosts}\nnum_machines: 4\nnum_processes: 16\n"
       "use_cpu: true\n" +
           kStatic},
      {"sagemaker.yaml",
       "compute_environment: AMAZON_SAGEMAKER\ndistributed_type: NO\nmixed_precision: fp16\n"
       "debug: false\nuse_cpu: false\nec2_instance_type: t\niam_role_name: r\n",
       {"compute_environment", "ec2_instance_type", "iam_role_name"}},
      {"te.yaml",
       kLocal + kStatic + ranks(2) +
           "distributed_type: MULTI_GPU\nmixed_precision: fp8\ngpu_ids: all\nfp8_config:\n"
           "  backend: TE\n  amax_compute_algo: max\n  amax_history_len: 1024\n"
           "  fp8_format: E4M3\n  override_linear_precision: (false, false, false)\n",
       {"fp8_config.backend"}},
      {"latest_fsdp.yaml",
       kLocal + kStatic + ranks(1) +
           "distributed_type: FSDP\nmixed_precision: 'no'\nfsdp_config:\n" + kFsdp1 +
           "  fsdp_ignored_modules: null\n  fsdp_transformer_layer_cls_to_wrap: BertLayer\n"},
      {"launch.yaml",
       "compute_environment: LOCAL_MACHINE\ndebug: true\nnum_processes: 1\n"
       "distributed_type: 'NO'\nfsdp_config: {fsdp_sync_module_states: false}\n"
       "deepspeed_config: {deepspeed_config_file: nowhere}\n"},
      {"fsdp2.yaml",
       kLocal + kStatic + ranks(4) + "distributed_type: FSDP\nmixed_precision: 'no'\n"}};
}

void check(const Playground& p, const KnownFile& file) {
  const SubprocessResult r = p.yoke({"config", "import", file.name, "model.preset=tiny"});
  SCOPED_TRACE(file.name + "\n" + file.text + "\n" + r.err);
  expect_all_keys_named(p, file.name, file.text);
  if (file.refused.empty()) {
    EXPECT_EQ(r.ending.exit_code, 0);
    EXPECT_THAT(r.out, HasSubstr("\nparallel_backend = "));
    return;
  }
  EXPECT_EQ(r.ending.exit_code, 2);
  EXPECT_EQ(r.out, "");
  const size_t number = file.refused.size();
  EXPECT_THAT(
      r.err,
      HasSubstr(number == 1 ? " has a key that" : " has " + std::to_string(number) + " keys"));
  for (const std::string& key : file.refused) EXPECT_THAT(r.err, HasSubstr(": " + key + " = "));
}

void check_all(const std::vector<std::vector<KnownFile>>& groups) {
  const Playground p;
  for (const auto& group : groups) {
    for (const KnownFile& file : group) p.folder().write(file.name, file.text);
  }
  for (const auto& group : groups) {
    for (const KnownFile& file : group) check(p, file);
  }
}

TEST(KnownConfigs, OfDeepSpeedAreHonouredOrRefusedByName) {
  check_all({gpt2_files(), bert_files(), other_deepspeed_files()});
}

TEST(KnownConfigs, OfAccelerateAreHonouredOrRefusedByName) {
  check_all({template_files(), accelerate_templates(), accelerate_tests()});
}

}  // namespace
}  // namespace yoke
