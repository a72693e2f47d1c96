// The table of keys, from the source of Accelerate. It is the only place that decides what happens
// to a key; plugins/accelerate_compat/README.md repeats it, and a test compares the two.
#include "plugins/accelerate_compat/config/keys.hpp"

namespace yoke::accelerate_compat {
namespace {

using enum Handling;
using enum Form;

// clang-format off
constexpr Key kKeys[] = {
    // ---- Strategy, precision, batch ----
    {"distributed_type", "", kHonoured, kString, "", "NO: one rank; MULTI_CPU, MULTI_GPU: DDP; FSDP: ptd; DEEPSPEED: yoke config import writes a run file for deepspeed_stub"},
    {"mixed_precision", "ACCELERATE_MIXED_PRECISION", kRun, kString, "no", "means precision.param: \"no\" means fp32 or fp64, \"bf16\" means bf16, \"fp16\" means fp16 with the loss scale of PyTorch's GradScaler, \"fp8\" means bf16 with precision.product = \"fp8\""},
    {"num_processes", "ACCELERATE_NUM_PROCESSES", kRun, kInt, "", "must equal the number of ranks, which --nproc or the launcher sets"},
    {"gradient_accumulation_steps", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS", kRun, kInt, "", "train.micro_batch must be global batch / (data ranks x accumulation steps), and is set to this if it is unset; Accelerate itself reads only the variable, never the file"},
    {"", "ACCELERATE_USE_FSDP", kHonoured, kBool, "false", "true means distributed_type FSDP if there is no config file"},
    {"", "ACCELERATE_USE_PARALLELISM_CONFIG", kHonoured, kBool, "false", "enables PARALLELISM_CONFIG_*"},

    // ---- FSDP ----
    {"fsdp_config", "", kSection, kAny, "", ""},
    {"fsdp_config.fsdp_version", "FSDP_VERSION", kHonoured, kInt, "1", "1 or 2: decides which values fsdp_sharding_strategy and fsdp_reshard_after_forward accept"},
    {"fsdp_config.fsdp_sharding_strategy", "FSDP_SHARDING_STRATEGY", kHonoured, kString, "FULL_SHARD", "version 1: FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD or HYBRID_SHARD_ZERO2, or the number of one of them in this order, 1 to 5"},
    {"fsdp_config.fsdp_reshard_after_forward", "FSDP_RESHARD_AFTER_FORWARD", kHonoured, kString, "true", "version 2: true or false, which sets ptd.reshard_after_forward; version 1: a second way to give the sharding strategy"},
    {"fsdp_config.fsdp_activation_checkpointing", "FSDP_ACTIVATION_CHECKPOINTING", kHonoured, kBool, "false", "true sets ptd.activation_checkpoint = \"full\""},
    {"fsdp_config.fsdp_auto_wrap_policy", "FSDP_AUTO_WRAP_POLICY", kHonoured, kString, "", "TRANSFORMER_BASED_WRAP: consecutive blocks are merged into units of at least ptd.unit_bytes; SIZE_BASED_WRAP: into units of at least fsdp_min_num_params parameters; NO_WRAP: the whole model is one unit"},
    {"fsdp_config.fsdp_min_num_params", "FSDP_MIN_NUM_PARAMS", kHonoured, kInt, "100000000", "minimum number of parameters of a unit under SIZE_BASED_WRAP"},
    {"fsdp_config.fsdp_state_dict_type", "FSDP_STATE_DICT_TYPE", kHonoured, kString, "SHARDED_STATE_DICT", "SHARDED_STATE_DICT or FULL_STATE_DICT: in both cases all ranks write the checkpoint, which holds whole tensors; LOCAL_STATE_DICT is refused"},
    {"fsdp_config.fsdp_forward_prefetch", "FSDP_FORWARD_PREFETCH", kHonoured, kBool, "false", "version 1: the next unit is gathered ahead whatever the value; version 2: true is refused, as in Accelerate"},
    {"fsdp_config.fsdp_offload_params", "FSDP_OFFLOAD_PARAMS", kRefused, kBool, "false", "offload is not supported; use more ranks"},
    {"fsdp_config.fsdp_activation_checkpointing_offload", "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD", kRefused, kBool, "false", "offload is not supported; use more ranks"},
    {"fsdp_config.fsdp_ignored_modules", "FSDP_IGNORED_MODULES", kRefused, kAny, "", "all parameters are sharded; to keep a module from being trained, freeze its parameters in the model"},
    {"fsdp_config.fsdp_transformer_layer_cls_to_wrap", "FSDP_TRANSFORMER_CLS_TO_WRAP", kNoEffect, kString, "", "the blocks of the model are always used as its layers"},
    {"fsdp_config.fsdp_backward_prefetch", "FSDP_BACKWARD_PREFETCH", kNoEffect, kString, "BACKWARD_PRE", "the next unit is always gathered ahead"},
    {"fsdp_config.fsdp_use_orig_params", "FSDP_USE_ORIG_PARAMS", kNoEffect, kBool, "true", "parameters always keep their identity and shape"},
    {"fsdp_config.fsdp_sync_module_states", "FSDP_SYNC_MODULE_STATES", kNoEffect, kBool, "true", "all ranks compute the same initial values"},
    {"fsdp_config.fsdp_cpu_ram_efficient_loading", "FSDP_CPU_RAM_EFFICIENT_LOADING", kNoEffect, kBool, "false", "no rank ever holds more than its part of the model"},

    // ---- ParallelismConfig ----
    {"parallelism_config", "", kSection, kAny, "", ""},
    {"parallelism_config.parallelism_config_dp_replicate_size", "PARALLELISM_CONFIG_DP_REPLICATE_SIZE", kHonoured, kInt, "1", "sets dp_degree"},
    {"parallelism_config.parallelism_config_dp_shard_size", "PARALLELISM_CONFIG_DP_SHARD_SIZE", kHonoured, kInt, "1", "sets dp_shards"},
    {"parallelism_config.parallelism_config_tp_size", "PARALLELISM_CONFIG_TP_SIZE", kHonoured, kInt, "1", "sets tp_degree"},
    {"parallelism_config.parallelism_config_cp_size", "PARALLELISM_CONFIG_CP_SIZE", kHonoured, kInt, "1", "sets cp_degree"},
    {"parallelism_config.parallelism_config_cp_backend", "PARALLELISM_CONFIG_CP_BACKEND", kRefused, kString, "torch", "there is only one implementation of context parallelism, that of ptd"},
    {"parallelism_config.parallelism_config_cp_comm_strategy", "PARALLELISM_CONFIG_CP_COMM_STRATEGY", kHonoured, kString, "allgather", "how ranks get the keys and values of other cp ranks: allgather sets ptd.cp_attention = \"all_gather\", alltoall sets \"ring\""},
    {"parallelism_config.parallelism_config_sp_size", "PARALLELISM_CONFIG_SP_SIZE", kRefused, kInt, "1", "DeepSpeed's Ulysses is not supported; use cp_size. Sequence parallelism within tensor parallelism needs no key"},
    {"parallelism_config.parallelism_config_sp_backend", "PARALLELISM_CONFIG_SP_BACKEND", kNoEffect, kString, "deepspeed", "applies only with sp_size, which is not supported"},
    {"parallelism_config.parallelism_config_sp_seq_length", "PARALLELISM_CONFIG_SP_SEQ_LENGTH", kNoEffect, kAny, "", "applies only with sp_size, which is not supported"},
    {"parallelism_config.parallelism_config_sp_seq_length_is_variable", "PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE", kNoEffect, kAny, "true", "applies only with sp_size, which is not supported"},
    {"parallelism_config.parallelism_config_sp_attn_implementation", "PARALLELISM_CONFIG_SP_ATTN_IMPLEMENTATION", kNoEffect, kString, "", "applies only with sp_size, which is not supported"},

    // ---- Other systems that Accelerate supports ----
    {"deepspeed_config", "", kSection, kAny, "", ""},
    {"deepspeed_config.deepspeed_config_file", "", kHonoured, kString, "", "a ds_config.json, relative to the current folder: yoke config import translates it as well; zero_stage, gradient_accumulation_steps, gradient_clipping and the keys of offload must then be unset, as in Accelerate"},
    {"deepspeed_config.zero_stage", "", kHonoured, kInt, "2", "becomes deepspeed_stub.zero_stage"},
    {"deepspeed_config.gradient_accumulation_steps", "", kRun, kInt, "", "becomes train.micro_batch, or train.max_micro_batch = 1000000, which limits nothing, if it is 1"},
    {"deepspeed_config.gradient_clipping", "", kRun, kString, "auto", "becomes train.clip"},
    {"deepspeed_config.offload_optimizer_device", "", kHonoured, kString, "none", "becomes deepspeed_stub.offload_optimizer_device; none, cpu or nvme"},
    {"deepspeed_config.offload_param_device", "", kHonoured, kString, "none", "becomes deepspeed_stub.offload_param_device; none, cpu or nvme"},
    {"deepspeed_config.offload_optimizer_nvme_path", "", kHonoured, kString, "none", "becomes deepspeed_stub.offload_optimizer_nvme_path"},
    {"deepspeed_config.offload_param_nvme_path", "", kHonoured, kString, "none", "becomes deepspeed_stub.offload_param_nvme_path"},
    {"deepspeed_config.zero3_init_flag", "", kNoEffect, kBool, "false", "no rank ever holds more than its part of the model"},
    {"deepspeed_config.zero3_save_16bit_model", "", kNoEffect, kBool, "false", "checkpoints always hold whole tensors"},
    {"deepspeed_config.deepspeed_multinode_launcher", "", kNoEffect, kString, "", "start the ranks with yoke train --nproc, torchrun, srun or mpirun"},
    {"deepspeed_config.deepspeed_hostfile", "", kNoEffect, kString, "", "start the ranks with yoke train --nproc, torchrun, srun or mpirun"},
    {"deepspeed_config.deepspeed_exclusion_filter", "", kNoEffect, kString, "", "start the ranks with yoke train --nproc, torchrun, srun or mpirun"},
    {"deepspeed_config.deepspeed_inclusion_filter", "", kNoEffect, kString, "", "start the ranks with yoke train --nproc, torchrun, srun or mpirun"},
    {"deepspeed_config.deepspeed_moe_layer_cls_names", "", kNoEffect, kString, "", "there are no experts"},
    {"", "ACCELERATE_USE_DEEPSPEED", kRefused, kBool, "false", "use parallel_backend = \"deepspeed_stub\", which reads a ds_config.json"},
    {"", "ACCELERATE_CONFIG_DS_FIELDS", kNoEffect, kAny, "", "applies only to DeepSpeed"},
    {"", "ACCELERATE_DEEPSPEED_*", kNoEffect, kAny, "", "applies only to DeepSpeed"},
    {"", "ACCELERATE_GRADIENT_CLIPPING", kNoEffect, kAny, "", "applies only to DeepSpeed; train.clip limits the norm for every backend"},
    {"megatron_lm_config", "", kRefused, kAny, "", "Megatron-LM is not supported; use parallelism_config"},
    {"", "ACCELERATE_USE_MEGATRON_LM", kRefused, kBool, "false", "Megatron-LM is not supported; use parallelism_config"},
    {"fp16", "", kRefused, kBool, "false", "an old key of Accelerate; use mixed_precision: fp16"},

    // ---- fp8, with mixed_precision fp8 ----
    {"fp8_config", "", kSection, kAny, "", ""},
    {"fp8_config.backend", "ACCELERATE_FP8_BACKEND", kHonoured, kString, "AO", "AO: torchao's recipe, which precision.product = \"fp8\" is; TE and MSAMP are refused"},
    {"fp8_config.enable_fsdp_float8_all_gather", "ACCELERATE_FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER", kHonoured, kBool, "false", "true, with shards and without tp, sets ptd.fp8_gather = true"},
    {"fp8_config.pad_inner_dim", "ACCELERATE_FP8_PAD_INNER_DIM", kNoEffect, kBool, "false", "matrices whose sides are not multiples of 16 are refused, unless precision.fp8_skip names them"},
    {"fp8_config.use_autocast_during_eval", "ACCELERATE_FP8_USE_AUTOCAST_DURING_EVAL", kNoEffect, kBool, "", "applies only to TransformerEngine, whose recipe does not exist here"},
    {"fp8_config.margin", "ACCELERATE_FP8_MARGIN", kNoEffect, kInt, "", "applies only to TransformerEngine, whose recipe does not exist here"},
    {"fp8_config.interval", "ACCELERATE_FP8_INTERVAL", kNoEffect, kInt, "", "applies only to TransformerEngine, whose recipe does not exist here"},
    {"fp8_config.fp8_format", "ACCELERATE_FP8_FORMAT", kNoEffect, kString, "", "applies only to TransformerEngine, whose recipe does not exist here"},
    {"fp8_config.amax_history_len", "ACCELERATE_FP8_AMAX_HISTORY_LEN", kNoEffect, kInt, "", "applies only to TransformerEngine, whose recipe does not exist here"},
    {"fp8_config.amax_history_length", "", kNoEffect, kInt, "", "applies only to TransformerEngine, whose recipe does not exist here"},
    {"fp8_config.amax_compute_algo", "ACCELERATE_FP8_AMAX_COMPUTE_ALGO", kNoEffect, kString, "", "applies only to TransformerEngine, whose recipe does not exist here"},
    {"fp8_config.amax_compute_algorithm", "", kNoEffect, kString, "", "applies only to TransformerEngine, whose recipe does not exist here"},
    {"fp8_config.override_linear_precision", "", kNoEffect, kAny, "", "applies only to TransformerEngine, whose recipe does not exist here"},
    {"fp8_config.use_mxfp8_block_scaling", "ACCELERATE_FP8_USE_MXFP8_BLOCK_SCALING", kNoEffect, kBool, "", "applies only to TransformerEngine, whose recipe does not exist here"},
    {"fp8_config.opt_level", "", kNoEffect, kString, "", "applies only to MS-AMP, whose recipe does not exist here"},
    {"fp8_config.optimization_level", "ACCELERATE_FP8_OPT_LEVEL", kNoEffect, kString, "", "applies only to MS-AMP, whose recipe does not exist here"},
    {"", "ACCELERATE_FP8_*", kNoEffect, kAny, "", "applies only to TransformerEngine, whose recipe does not exist here"},

    // ---- Launching and devices ----
    {"compute_environment", "", kRefused, kString, "LOCAL_MACHINE", "SageMaker is not supported; start the ranks yourself with torchrun, srun or mpirun"},
    {"num_machines", "", kHonoured, kInt, "1", "HYBRID_SHARD and HYBRID_SHARD_ZERO2: number of replicas, one per machine. It starts no ranks: use yoke train --nproc, torchrun, srun or mpirun"},
    {"machine_rank", "", kNoEffect, kInt, "0", "the launcher of the ranks sets it"},
    {"main_process_ip", "", kNoEffect, kString, "", "ranks connect to MASTER_ADDR instead"},
    {"main_process_port", "", kNoEffect, kAny, "", "ranks connect to MASTER_PORT instead"},
    {"rdzv_backend", "", kNoEffect, kString, "static", "the launcher of the ranks sets it"},
    {"same_network", "", kNoEffect, kBool, "true", "ranks always connect to MASTER_ADDR"},
    {"main_training_function", "", kNoEffect, kString, "main", "there is no Python script"},
    {"gpu_ids", "", kNoEffect, kString, "all", "CUDA_VISIBLE_DEVICES chooses devices"},
    {"use_cpu", "ACCELERATE_USE_CPU", kNoEffect, kBool, "false", "the run file's device decides"},
    {"enable_cpu_affinity", "ACCELERATE_CPU_AFFINITY", kNoEffect, kBool, "false", "taskset or the launcher binds ranks to cores"},
    {"debug", "ACCELERATE_DEBUG_MODE", kNoEffect, kBool, "false", "use comm.check = \"full\", which compares every collective between the ranks"},
    {"mpirun_config", "", kNoEffect, kAny, "", "run mpirun -n N yoke train instead"},
    {"downcast_bf16", "ACCELERATE_DOWNCAST_BF16", kNoEffect, kBool, "false", "applies only to TPUs"},
    {"tpu_name", "", kNoEffect, kAny, "", "applies only to TPUs"},
    {"tpu_zone", "", kNoEffect, kAny, "", "applies only to TPUs"},
    {"tpu_use_cluster", "", kNoEffect, kBool, "false", "applies only to TPUs"},
    {"tpu_use_sudo", "", kNoEffect, kBool, "false", "applies only to TPUs"},
    {"tpu_vm", "", kNoEffect, kAny, "", "applies only to TPUs"},
    {"tpu_env", "", kNoEffect, kAny, "", "applies only to TPUs"},
    {"command_file", "", kNoEffect, kAny, "", "applies only to TPUs"},
    {"commands", "", kNoEffect, kAny, "", "applies only to TPUs"},
    {"dynamo_backend", "", kNoEffect, kString, "NO", "there is no Python code to compile"},
    {"dynamo_config", "", kSection, kAny, "", ""},
    {"dynamo_config.dynamo_backend", "ACCELERATE_DYNAMO_BACKEND", kNoEffect, kString, "NO", "there is no Python code to compile"},
    {"dynamo_config.dynamo_mode", "ACCELERATE_DYNAMO_MODE", kNoEffect, kString, "default", "there is no Python code to compile"},
    {"dynamo_config.dynamo_use_fullgraph", "ACCELERATE_DYNAMO_USE_FULLGRAPH", kNoEffect, kBool, "false", "there is no Python code to compile"},
    {"dynamo_config.dynamo_use_dynamic", "ACCELERATE_DYNAMO_USE_DYNAMIC", kNoEffect, kBool, "false", "there is no Python code to compile"},
    {"dynamo_config.dynamo_use_regional_compilation", "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", kNoEffect, kBool, "false", "there is no Python code to compile"},
    {"", "ACCELERATE_LOG_LEVEL", kNoEffect, kAny, "", "the logs of all ranks are in run.dir/logs"},
    {"", "ACCELERATE_ENABLE_RICH", kNoEffect, kAny, "", "there is no Python"},
    {"", "ACCELERATE_TORCH_DEVICE", kNoEffect, kAny, "", "the run file's device decides"},
    {"", "ACCELERATE_BYPASS_DEVICE_MAP", kNoEffect, kAny, "", "there are no device maps"},
    {"", "ACCELERATE_INIT_INCLUDE_BUFFERS", kNoEffect, kAny, "", "blocks have no buffers"},
    {"", "ACCELERATE_ALLOW_CP_STANDALONE", kNoEffect, kAny, "", "cp_size works without FSDP here"},
    {"", "ACCELERATE_DEBUG_RDV_FILE", kNoEffect, kAny, "", "applies only to Accelerate's own tests"},
    {"", "ACCELERATE_USE_SAGEMAKER", kRefused, kBool, "false", "SageMaker is not supported; start the ranks yourself with torchrun, srun or mpirun"},
    {"", "ACCELERATE_SAGEMAKER_*", kNoEffect, kAny, "", "applies only to SageMaker"},
};
// clang-format on

// Returns "fsdp_config." for "fsdp_config.fsdp_version", and "" for a key outside of sections.
std::string_view section(std::string_view path) {
  return path.substr(0, path.rfind('.') + 1);
}

}  // namespace

std::span<const Key> keys() {
  return kKeys;
}

const Key* find_path(std::string_view path) {
  for (const Key& key : kKeys) {
    if (!key.path.empty() && key.path == path) return &key;
  }
  return nullptr;
}

const Key* find_variable(std::string_view variable) {
  for (const Key& key : kKeys) {
    if (key.variable.empty()) continue;
    if (key.variable == variable) return &key;
    if (key.variable.ends_with('*') &&
        variable.starts_with(key.variable.substr(0, key.variable.size() - 1)))
      return &key;
  }
  return nullptr;
}

std::vector<std::string> siblings(std::string_view path) {
  std::vector<std::string> names;
  for (const Key& key : kKeys) {
    if (!key.path.empty() && section(key.path) == section(path))
      names.emplace_back(key.path.substr(section(path).size()));
  }
  return names;
}

std::vector<std::string> variables() {
  std::vector<std::string> names;
  for (const Key& key : kKeys) {
    if (!key.variable.empty()) names.emplace_back(key.variable);
  }
  return names;
}

}  // namespace yoke::accelerate_compat
