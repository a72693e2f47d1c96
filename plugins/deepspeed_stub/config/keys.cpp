#include "plugins/deepspeed_stub/config/keys.hpp"

namespace yoke::deepspeed_stub {
namespace {

using enum Handling;
using enum Form;

// clang-format off
constexpr Key kKeys[] = {
    // ---- Batch, optimizer, precision
    {"train_batch_size", kRun, kInt, "null", "train.global_batch"},
    {"train_micro_batch_size_per_gpu", kRun, kInt, "null", "train.micro_batch, which it fills if that is unset"},
    {"gradient_accumulation_steps", kRun, kInt, "null", "fills train.micro_batch if that is unset"},
    {"gradient_clipping", kRun, kNumber, "1.0", "train.clip"},
    {"optimizer", kSection, kAny, "", ""},
    {"optimizer.type", kRun, kString, "null", "Adam and AdamW are both decoupled AdamW, as in DeepSpeed"},
    {"optimizer.params", kSection, kAny, "", ""},
    {"optimizer.params.lr", kRun, kNumber, "null", "train.lr"},
    {"optimizer.params.betas", kRun, kAny, "null", "train.betas"},
    {"optimizer.params.eps", kRun, kNumber, "null", "train.eps"},
    {"optimizer.params.weight_decay", kRun, kNumber, "null", "train.weight_decay"},
    {"optimizer.params.adam_w_mode", kRefused, kBool, "true", "L2 regularisation inside Adam; only decoupled weight decay is built"},
    {"optimizer.params.bias_correction", kRefused, kBool, "true", "the moments are always corrected"},
    {"optimizer.params.amsgrad", kRefused, kBool, "false", "AMSGrad is not built"},
    {"optimizer.params.torch_adam", kNoEffect, kBool, "", "the update is a kernel of this backend's own"},
    {"optimizer.params.fused", kNoEffect, kBool, "", "the update is always one fused pass"},
    {"optimizer.legacy_fusion", kNoEffect, kAny, "", "the update is always one fused pass"},
    {"scheduler", kSection, kAny, "", ""},
    {"scheduler.type", kRefused, kString, "null", "remove the scheduler: train.lr, train.warmup and train.schedule set the rate of every step, for every backend alike"},
    {"scheduler.params", kNoEffect, kAny, "", "train.warmup and train.schedule set the rate of every step"},
    {"bf16", kSection, kAny, "", ""},
    {"bf16.enabled", kRun, kBool, "false", "precision.param = \"bf16\""},
    {"bf16.bf16_master_weights_and_grads", kRefused, kBool, "false", "master weights stay fp32"},
    {"bf16.bf16_optimizer_states", kRefused, kBool, "false", "moments stay fp32"},
    {"bf16.immediate_grad_update", kNoEffect, kBool, "", "gradients are always accumulated as they arrive"},
    {"bf16.check_grad_overflow", kNoEffect, kBool, "", "a loss or norm that is not finite always ends the run"},
    {"bfloat16", kSection, kAny, "", ""},
    {"bfloat16.enabled", kRun, kBool, "false", "older name of bf16.enabled"},
    {"fp16", kSection, kAny, "", ""},
    {"fp16.enabled", kRefused, kBool, "false", "fp16 and its loss scaling are not built; use bf16, which needs no scaling"},
    {"fp16.*", kNoEffect, kAny, "", "only with fp16.enabled, which is not built"},
    {"amp", kSection, kAny, "", ""},
    {"amp.enabled", kRefused, kBool, "false", "Apex is a PyTorch extension; use bf16"},
    {"amp.*", kNoEffect, kAny, "", "only with amp.enabled"},
    {"fp16_master_weights_and_gradients", kRefused, kBool, "false", "fp16 is not built"},
    {"communication_data_type", kRun, kString, "null", "precision.reduce"},
    {"data_types", kSection, kAny, "", ""},
    {"data_types.grad_accum_dtype", kRun, kString, "null", "precision.reduce: gradients are accumulated as they are reduced"},
    {"seq_parallel_communication_data_type", kNoEffect, kAny, "", "there is no sequence parallelism here"},
    {"prescale_gradients", kNoEffect, kBool, "", "the loss is divided by the tokens of the whole batch, so gradients are sums and nothing is averaged"},
    {"gradient_predivide_factor", kNoEffect, kNumber, "", "the loss is divided by the tokens of the whole batch, so gradients are sums and nothing is averaged"},
    {"gradient_allreduce_op", kRefused, kString, "\"mean\"", "the loss of a run is the mean over the tokens of the batch, whatever the number of ranks"},
    {"sparse_gradients", kRefused, kBool, "false", "gradients are dense"},
    {"disable_allgather", kRefused, kBool, "false", "the ranks would keep different weights"},

    // ---- ZeRO
    {"zero_optimization", kSection, kAny, "", ""},
    {"zero_optimization.stage", kHonoured, kInt, "0", "0: replicas; 1: optimizer state and master weights in slices; 2: gradients too; 3: parameters too"},
    {"zero_optimization.reduce_bucket_size", kHonoured, kInt, "5e8", "elements that are reduced together"},
    {"zero_optimization.reduce_scatter", kHonoured, kBool, "true", "stages 1 and 2: a bucket that holds the whole model is scattered to its owners; false: all-reduce"},
    {"zero_optimization.allgather_partitions", kHonoured, kBool, "true", "stages 1 and 2: updated slices are gathered; false: each is broadcast by its owner"},
    {"zero_optimization.allgather_bucket_size", kHonoured, kInt, "5e8", "elements that are gathered together after the update"},
    {"zero_optimization.overlap_comm", kHonoured, kBool, "null", "buckets are reduced while the backward goes on; unset: true at stage 3"},
    {"zero_optimization.stage3_prefetch_bucket_size", kHonoured, kInt, "5e7", "elements that are gathered ahead of their use"},
    {"zero_optimization.stage3_param_persistence_threshold", kHonoured, kInt, "1e5", "parameters of at most so many elements stay whole"},
    {"zero_optimization.stage3_model_persistence_threshold", kHonoured, kInt, "9223372036854775807", "elements of all parameters that stay whole, at most"},
    {"zero_optimization.stage3_max_live_parameters", kHonoured, kInt, "1e9", "elements that may be whole at a time; more are freed after use and not gathered ahead"},
    {"zero_optimization.stage3_max_reuse_distance", kHonoured, kInt, "1e9", "a parameter that is used again within so many elements stays whole"},
    {"zero_optimization.contiguous_gradients", kNoEffect, kBool, "", "gradients are always copied into flat buckets"},
    {"zero_optimization.use_multi_rank_bucket_allreduce", kNoEffect, kBool, "", "a bucket of several owners is always one all-reduce"},
    {"zero_optimization.load_from_fp32_weights", kRefused, kBool, "true", "checkpoints hold fp32 master weights and load them"},
    {"zero_optimization.elastic_checkpoint", kNoEffect, kBool, "", "every checkpoint loads at any stage and world size"},
    {"zero_optimization.round_robin_gradients", kNoEffect, kBool, "", "it spreads copies to the host, and there are none"},
    {"zero_optimization.ignore_unused_parameters", kNoEffect, kBool, "", "the host gives every trainable parameter a gradient"},
    {"zero_optimization.sub_group_size", kNoEffect, kInt, "", "the update of a slice is one pass"},
    {"zero_optimization.stage3_gather_16bit_weights_on_model_save", kNoEffect, kBool, "", "checkpoints always hold whole tensors"},
    {"zero_optimization.stage3_gather_fp16_weights_on_model_save", kNoEffect, kBool, "", "checkpoints always hold whole tensors"},
    {"zero_optimization.stage3_use_all_reduce_for_fetch_params", kNoEffect, kBool, "", "parameters are always gathered by all-gather"},
    {"zero_optimization.stage3_module_granularity_threshold", kNoEffect, kInt, "", "parameters are gathered by block"},
    {"zero_optimization.memory_efficient_linear", kNoEffect, kBool, "", "the host owns the mathematics"},
    {"zero_optimization.pipeline_loading_checkpoint", kNoEffect, kBool, "", "the host reads checkpoints"},
    {"zero_optimization.override_module_apply", kNoEffect, kBool, "", "there are no PyTorch modules"},
    {"zero_optimization.log_trace_cache_warnings", kNoEffect, kBool, "", "the order of blocks is known, nothing is traced"},
    {"zero_optimization.enable_sanity_checks", kNoEffect, kBool, "", "comm.check compares the ranks' collectives"},
    {"zero_optimization.legacy_stage1", kNoEffect, kBool, "", "there is one implementation of stage 1"},
    {"zero_optimization.offload_optimizer", kSection, kAny, "", ""},
    {"zero_optimization.offload_optimizer.device", kRefused, kString, "\"none\"", "offload is not built, neither to the CPU nor to NVMe; use stage 3 over more ranks"},
    {"zero_optimization.offload_optimizer.*", kNoEffect, kAny, "", "only with an offload device"},
    {"zero_optimization.offload_param", kSection, kAny, "", ""},
    {"zero_optimization.offload_param.device", kRefused, kString, "\"none\"", "offload is not built, neither to the CPU nor to NVMe; use stage 3 over more ranks"},
    {"zero_optimization.offload_param.*", kNoEffect, kAny, "", "only with an offload device"},
    {"zero_optimization.cpu_offload", kRefused, kBool, "false", "offload is not built; use stage 3 over more ranks"},
    {"zero_optimization.cpu_offload_params", kRefused, kBool, "false", "offload is not built; use stage 3 over more ranks"},
    {"zero_optimization.cpu_offload_use_pin_memory", kNoEffect, kBool, "", "offload is not built"},
    {"zero_optimization.zero_hpz_partition_size", kRefused, kInt, "1", "ZeRO++ is not built: no second partition inside a node"},
    {"zero_optimization.zero_quantized_weights", kRefused, kBool, "false", "ZeRO++ is not built: weights travel unquantised"},
    {"zero_optimization.zero_quantized_nontrainable_weights", kRefused, kBool, "false", "ZeRO++ is not built: weights travel unquantised"},
    {"zero_optimization.zero_quantized_gradients", kRefused, kBool, "false", "ZeRO++ is not built: gradients travel unquantised"},
    {"zero_optimization.zeropp_loco_param", kRefused, kAny, "null", "ZeRO++ is not built"},
    {"zero_optimization.mics_shard_size", kRefused, kInt, "-1", "MiCS is not built: slices spread over all data ranks"},
    {"zero_optimization.mics_hierarchical_params_gather", kRefused, kBool, "false", "MiCS is not built"},
    {"zero_allow_untested_optimizer", kNoEffect, kBool, "", "AdamW is the only optimizer"},
    {"zero_force_ds_cpu_optimizer", kNoEffect, kBool, "", "offload is not built"},

    // ---- Other parts of DeepSpeed
    {"activation_checkpointing", kSection, kAny, "", ""},
    {"activation_checkpointing.*", kNoEffect, kAny, "", "in DeepSpeed too it works only for models that call its function; activations are kept"},
    {"tensor_parallel", kSection, kAny, "", ""},
    {"tensor_parallel.autotp_size", kRefused, kInt, "0", "tensor parallelism is not built"},
    {"tensor_parallel.*", kNoEffect, kAny, "", "only with autotp_size"},
    {"elasticity", kSection, kAny, "", ""},
    {"elasticity.enabled", kRefused, kBool, "false", "the global batch is fixed by the run file, whatever the number of ranks"},
    {"elasticity.*", kNoEffect, kAny, "", "only with elasticity.enabled"},
    {"autotuning", kSection, kAny, "", ""},
    {"autotuning.enabled", kRefused, kBool, "false", "DeepSpeed's launcher would run a search instead of the training"},
    {"autotuning.*", kNoEffect, kAny, "", "only with autotuning.enabled"},
    {"compile", kSection, kAny, "", ""},
    {"compile.deepcompile", kRefused, kBool, "false", "there is no PyTorch graph to compile"},
    {"compile.*", kNoEffect, kAny, "", "only with compile.deepcompile"},
    {"checkpoint", kSection, kAny, "", ""},
    {"checkpoint.tag_validation", kNoEffect, kAny, "", "the host's manifest is the same for all ranks"},
    {"checkpoint.load_universal", kNoEffect, kBool, "", "every checkpoint loads at any stage and world size"},
    {"checkpoint.use_node_local_storage", kRefused, kBool, "false", "all ranks write into one folder, run.dir"},
    {"checkpoint.parallel_write", kSection, kAny, "", ""},
    {"checkpoint.parallel_write.*", kNoEffect, kAny, "", "all ranks write their pieces at the same time"},
    {"nebula", kSection, kAny, "", ""},
    {"nebula.enabled", kRefused, kBool, "false", "the host writes checkpoints"},
    {"nebula.*", kNoEffect, kAny, "", "only with nebula.enabled"},
    {"sparse_attention", kRefused, kAny, "null", "the host owns the mathematics of attention"},
    {"compression_training", kRefused, kAny, "null", "the host owns the mathematics of the model"},
    {"progressive_layer_drop", kSection, kAny, "", ""},
    {"progressive_layer_drop.enabled", kRefused, kBool, "false", "every block runs in every step"},
    {"progressive_layer_drop.*", kNoEffect, kAny, "", "only with progressive_layer_drop.enabled"},
    {"curriculum_learning", kSection, kAny, "", ""},
    {"curriculum_learning.enabled", kRefused, kBool, "false", "the run file decides about the data"},
    {"curriculum_learning.*", kNoEffect, kAny, "", "only with curriculum_learning.enabled"},
    {"data_efficiency", kSection, kAny, "", ""},
    {"data_efficiency.enabled", kRefused, kBool, "false", "the run file decides about the data"},
    {"data_efficiency.*", kNoEffect, kAny, "", "only with data_efficiency.enabled"},
    {"eigenvalue", kSection, kAny, "", ""},
    {"eigenvalue.enabled", kRefused, kBool, "false", "it serves compression, which is not built"},
    {"eigenvalue.*", kNoEffect, kAny, "", "only with eigenvalue.enabled"},
    {"hybrid_engine", kSection, kAny, "", ""},
    {"hybrid_engine.enabled", kRefused, kBool, "false", "generation during training is not built"},
    {"hybrid_engine.*", kNoEffect, kAny, "", "only with hybrid_engine.enabled"},
    {"dataloader_drop_last", kNoEffect, kBool, "", "every global batch is complete"},
    {"steps_per_print", kNoEffect, kInt, "", "metrics.every"},
    {"wall_clock_breakdown", kNoEffect, kBool, "", "metrics.jsonl has the time of every step and of communication"},
    {"memory_breakdown", kNoEffect, kBool, "", "metrics.jsonl has the memory"},
    {"dump_state", kNoEffect, kBool, "", "config.resolved.toml has all values"},
    {"comms_logger", kNoEffect, kAny, "", "metrics.jsonl has calls and bytes of every axis"},
    {"flops_profiler", kNoEffect, kAny, "", "the log line has tflops"},
    {"tensorboard", kNoEffect, kAny, "", "metrics.jsonl"},
    {"wandb", kNoEffect, kAny, "", "metrics.jsonl"},
    {"csv_monitor", kNoEffect, kAny, "", "metrics.jsonl"},
    {"comet", kNoEffect, kAny, "", "metrics.jsonl"},
    {"aio", kNoEffect, kAny, "", "NVMe offload is not built"},
    {"pipeline", kNoEffect, kAny, "", "there is no pipeline"},
    {"use_data_before_expert_parallelism", kNoEffect, kBool, "", "there are no experts"},
    {"graph_harvesting", kNoEffect, kBool, "", "there are no CUDA graphs"},
};
// clang-format on

std::string_view parent(std::string_view path) {
  const size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? "" : path.substr(0, dot);
}

std::string_view last_word(std::string_view path) {
  const size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? path : path.substr(dot + 1);
}

}  // namespace

std::span<const Key> keys() {
  return kKeys;
}

const Key* find_key(std::string_view path) {
  const Key* any = nullptr;
  for (const Key& key : kKeys) {
    if (key.path == path) return &key;
    if (last_word(key.path) == "*" && parent(key.path) == parent(path)) any = &key;
  }
  return any;
}

std::vector<std::string> siblings(std::string_view path) {
  std::vector<std::string> names;
  for (const Key& key : kKeys) {
    if (parent(key.path) == parent(path) && last_word(key.path) != "*")
      names.emplace_back(last_word(key.path));
  }
  return names;
}

std::string inline_name(const Key& key) {
  if (key.path == "zero_optimization.stage") return "zero_stage";
  if (key.handling == Handling::kHonoured) return std::string(last_word(key.path));
  const bool of_the_batch = key.handling == Handling::kRun && key.form == Form::kInt;
  return of_the_batch ? std::string(key.path) : "";
}

}  // namespace yoke::deepspeed_stub
