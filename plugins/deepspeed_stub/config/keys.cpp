// The table of keys, from DeepSpeed's own documentation and source. It is the only place that
// decides what happens to a key; plugins/deepspeed_stub/README.md repeats it, and a test compares
// the two.
#include "plugins/deepspeed_stub/config/keys.hpp"

namespace yoke::deepspeed_stub {
namespace {

using enum Handling;
using enum Form;

// clang-format off
constexpr Key kKeys[] = {
    // ---- Batch, optimizer, precision ----
    {"train_batch_size", kRun, kInt, "null", "means train.global_batch"},
    {"train_micro_batch_size_per_gpu", kRun, kInt, "null", "means train.micro_batch"},
    {"gradient_accumulation_steps", kRun, kInt, "null", "train.micro_batch must be global batch / (data ranks x accumulation steps), and is set to this if it is unset"},
    {"gradient_clipping", kRun, kNumber, "0.0", "means train.clip; 0 does not clip"},
    {"optimizer", kSection, kAny, "", ""},
    {"optimizer.type", kRun, kString, "null", "must mean train.optimizer: AdamW and Adam are \"adamw\", Adam with adam_w_mode = false is \"adam\", Lion is \"lion\""},
    {"optimizer.params", kSection, kAny, "", ""},
    {"optimizer.params.lr", kRun, kNumber, "0.001", "means train.lr"},
    {"optimizer.params.betas", kRun, kAny, "[0.9, 0.999]", "means train.betas"},
    {"optimizer.params.eps", kRun, kNumber, "1e-8", "means train.eps"},
    {"optimizer.params.weight_decay", kRun, kNumber, "0.0", "means train.weight_decay"},
    {"optimizer.params.adam_w_mode", kRun, kBool, "true", "false with the type Adam means train.optimizer = \"adam\", whose weight decay is part of the gradient"},
    {"optimizer.params.bias_correction", kRun, kBool, "true", "means train.bias_correction"},
    {"optimizer.params.amsgrad", kRefused, kBool, "false", "AMSGrad is not supported"},
    {"optimizer.params.torch_adam", kRun, kBool, "false", "true selects PyTorch's classes in DeepSpeed, whose AdamW has a default weight_decay of 0.01; the update here is always this backend's own kernel"},
    {"optimizer.params.fused", kNoEffect, kBool, "", "the update is always one fused pass"},
    {"optimizer.legacy_fusion", kNoEffect, kAny, "", "the update is always one fused pass"},
    {"scheduler", kSection, kAny, "", ""},
    {"scheduler.type", kRun, kString, "null", "means train.schedule; WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle or LRRangeTest"},
    {"scheduler.params", kSection, kAny, "", ""},
    {"scheduler.params.warmup_min_lr", kRun, kNumber, "0", "means lr_schedule.start_factor x train.lr"},
    {"scheduler.params.warmup_max_lr", kRun, kNumber, "null", "means train.lr; then optimizer.params.lr has no effect"},
    {"scheduler.params.warmup_num_steps", kRun, kInt, "1000", "means train.warmup"},
    {"scheduler.params.warmup_type", kRun, kString, "\"log\"", "means lr_schedule.warmup_shape"},
    {"scheduler.params.total_num_steps", kRun, kInt, "null", "means lr_schedule.total_steps"},
    {"scheduler.params.warmup_min_ratio", kRun, kNumber, "0", "means lr_schedule.start_factor"},
    {"scheduler.params.cos_min_ratio", kRun, kNumber, "0.0001", "means train.min_lr_factor"},
    {"scheduler.params.cycle_min_lr", kRun, kNumber, "null", "means lr_schedule.start_factor x train.lr"},
    {"scheduler.params.cycle_max_lr", kRun, kNumber, "null", "means train.lr; then optimizer.params.lr has no effect"},
    {"scheduler.params.cycle_first_step_size", kRun, kInt, "2000", "means lr_schedule.rise_steps"},
    {"scheduler.params.cycle_second_step_size", kRun, kInt, "null", "means lr_schedule.fall_steps"},
    {"scheduler.params.cycle_first_stair_count", kRun, kInt, "0", "means lr_schedule.rise_stairs"},
    {"scheduler.params.cycle_second_stair_count", kRun, kInt, "null", "means lr_schedule.fall_stairs"},
    {"scheduler.params.decay_step_size", kRun, kInt, "0", "means lr_schedule.tail_steps"},
    {"scheduler.params.decay_lr_rate", kRun, kNumber, "0", "means lr_schedule.tail_rate"},
    {"scheduler.params.cycle_momentum", kRun, kBool, "true", "must be false: the betas of a run are constant"},
    {"scheduler.params.cycle_min_mom", kNoEffect, kNumber, "", "applies only with cycle_momentum"},
    {"scheduler.params.cycle_max_mom", kNoEffect, kNumber, "", "applies only with cycle_momentum"},
    {"scheduler.params.decay_mom_rate", kNoEffect, kNumber, "", "applies only with cycle_momentum"},
    {"scheduler.params.lr_range_test_min_lr", kRun, kNumber, "0.001", "means train.lr; then optimizer.params.lr has no effect"},
    {"scheduler.params.lr_range_test_step_size", kRun, kInt, "2000", "means lr_schedule.range_steps"},
    {"scheduler.params.lr_range_test_step_rate", kRun, kNumber, "1", "means lr_schedule.range_rate"},
    {"scheduler.params.lr_range_test_staircase", kRun, kBool, "false", "means lr_schedule.staircase"},
    {"scheduler.params.last_batch_iteration", kRefused, kInt, "-1", "a checkpoint holds the step, and a resumed run continues from it"},
    {"bf16", kSection, kAny, "", ""},
    {"bf16.enabled", kRun, kBool, "false", "true means precision.param = \"bf16\", false another dtype"},
    {"bf16.bf16_master_weights_and_grads", kRefused, kBool, "false", "bf16 master weights are not supported; they are always fp32"},
    {"bf16.bf16_optimizer_states", kRefused, kBool, "false", "bf16 moments are not supported; they are always fp32"},
    {"bf16.immediate_grad_update", kNoEffect, kBool, "", "gradients are always accumulated as they arrive"},
    {"bf16.check_grad_overflow", kNoEffect, kBool, "", "train.max_skipped says how many steps with a norm that is not finite are skipped"},
    {"bfloat16", kSection, kAny, "", ""},
    {"bfloat16.enabled", kRun, kBool, "false", "older name of bf16.enabled"},
    {"fp16", kSection, kAny, "", ""},
    {"fp16.enabled", kRun, kBool, "false", "true means precision.param = \"fp16\", false another dtype"},
    {"fp16.auto_cast", kNoEffect, kBool, "", "the inputs are token ids, which are never cast"},
    {"fp16.loss_scale", kRun, kNumber, "0", "means loss_scale.static"},
    {"fp16.initial_scale_power", kRun, kInt, "16", "means loss_scale.initial_power"},
    {"fp16.loss_scale_window", kRun, kInt, "1000", "means loss_scale.window"},
    {"fp16.hysteresis", kRun, kInt, "2", "means loss_scale.hysteresis; no effect at stage 0, where loss_scale.rule = \"fp16_optimizer\""},
    {"fp16.consecutive_hysteresis", kRun, kBool, "false", "means loss_scale.consecutive_hysteresis; no effect at stage 0"},
    {"fp16.min_loss_scale", kRun, kNumber, "1", "means loss_scale.min"},
    {"fp16.fp16_master_weights_and_grads", kRefused, kBool, "false", "fp16 master weights are not supported; they are always fp32"},
    {"amp", kSection, kAny, "", ""},
    {"amp.enabled", kRefused, kBool, "false", "Apex, a PyTorch extension, is not supported; use bf16"},
    {"amp.*", kNoEffect, kAny, "", "applies only with amp.enabled"},
    {"fp16_master_weights_and_gradients", kRefused, kBool, "false", "fp16 master weights are not supported; they are always fp32"},
    {"communication_data_type", kRun, kString, "null", "means precision.reduce"},
    {"data_types", kSection, kAny, "", ""},
    {"data_types.grad_accum_dtype", kRun, kString, "null", "means precision.reduce: gradients are accumulated in the dtype in which they are reduced"},
    {"seq_parallel_communication_data_type", kNoEffect, kAny, "", "sequence parallelism is not supported"},
    {"prescale_gradients", kNoEffect, kBool, "", "the loss is divided by the number of tokens of the whole batch, so gradients are summed, never averaged"},
    {"gradient_predivide_factor", kNoEffect, kNumber, "", "the loss is divided by the number of tokens of the whole batch, so gradients are summed, never averaged"},
    {"gradient_allreduce_op", kRefused, kString, "\"mean\"", "the loss of a run is the mean over the tokens of the batch, for any number of ranks"},
    {"sparse_gradients", kRefused, kBool, "false", "all gradients are dense"},
    {"disable_allgather", kNoEffect, kBool, "", "DeepSpeed reads this key, but nothing in it uses the value"},

    // ---- ZeRO ----
    {"zero_optimization", kSection, kAny, "", ""},
    {"zero_optimization.stage", kHonoured, kInt, "0", "what is sliced over the data ranks. 0: nothing; 1: optimizer state and master weights; 2: also gradients; 3: also parameters"},
    {"zero_optimization.reduce_bucket_size", kHonoured, kInt, "5e8", "gradients are reduced in buckets of this many elements"},
    {"zero_optimization.reduce_scatter", kHonoured, kBool, "true", "stages 1 and 2: true reduce-scatters a bucket that holds the whole model, false all-reduces it"},
    {"zero_optimization.allgather_partitions", kHonoured, kBool, "true", "stages 1 and 2: true all-gathers the updated slices; false lets the owner of each slice broadcast it"},
    {"zero_optimization.allgather_bucket_size", kHonoured, kInt, "5e8", "after the update, parameters are gathered in buckets of this many elements"},
    {"zero_optimization.overlap_comm", kHonoured, kBool, "null", "true reduces buckets while the backward continues; if unset, it is true at stage 3, else false"},
    {"zero_optimization.stage3_prefetch_bucket_size", kHonoured, kInt, "5e7", "parameters are gathered ahead of their use in buckets of this many elements"},
    {"zero_optimization.stage3_param_persistence_threshold", kHonoured, kInt, "1e5", "parameters of at most this many elements always stay whole"},
    {"zero_optimization.stage3_model_persistence_threshold", kHonoured, kInt, "9223372036854775807", "limit of the total number of elements in parameters that always stay whole"},
    {"zero_optimization.stage3_max_live_parameters", kHonoured, kInt, "1e9", "limit of the number of elements that are whole at the same time; above it, parameters are freed after each use and none are gathered ahead"},
    {"zero_optimization.stage3_max_reuse_distance", kHonoured, kInt, "1e9", "a parameter stays whole between two uses if the blocks in between have at most this many elements"},
    {"zero_optimization.contiguous_gradients", kNoEffect, kBool, "", "gradients are always copied into flat buckets"},
    {"zero_optimization.use_multi_rank_bucket_allreduce", kNoEffect, kBool, "", "a bucket with several owners is always reduced by one all-reduce"},
    {"zero_optimization.load_from_fp32_weights", kRefused, kBool, "true", "checkpoints always save and load fp32 master weights"},
    {"zero_optimization.elastic_checkpoint", kNoEffect, kBool, "", "every checkpoint loads at any stage and world size"},
    {"zero_optimization.round_robin_gradients", kNoEffect, kBool, "", "it distributes the copies of gradients to the CPU, and no such copies are made"},
    {"zero_optimization.ignore_unused_parameters", kNoEffect, kBool, "", "the model reports a gradient for every trainable parameter"},
    {"zero_optimization.sub_group_size", kHonoured, kInt, "1e9", "state in files is updated in parts of at most this many elements, and never more than 262144"},
    {"zero_optimization.stage3_gather_16bit_weights_on_model_save", kNoEffect, kBool, "", "checkpoints always hold whole tensors"},
    {"zero_optimization.stage3_gather_fp16_weights_on_model_save", kNoEffect, kBool, "", "checkpoints always hold whole tensors"},
    {"zero_optimization.stage3_use_all_reduce_for_fetch_params", kNoEffect, kBool, "", "parameters are always gathered by all-gather"},
    {"zero_optimization.stage3_module_granularity_threshold", kNoEffect, kInt, "", "parameters are gathered by block"},
    {"zero_optimization.memory_efficient_linear", kNoEffect, kBool, "", "the host computes the model"},
    {"zero_optimization.pipeline_loading_checkpoint", kNoEffect, kBool, "", "the host reads checkpoints"},
    {"zero_optimization.override_module_apply", kNoEffect, kBool, "", "there are no PyTorch modules"},
    {"zero_optimization.log_trace_cache_warnings", kNoEffect, kBool, "", "the order of blocks is known beforehand, so nothing is traced"},
    {"zero_optimization.enable_sanity_checks", kNoEffect, kBool, "", "comm.check compares the ranks' collectives"},
    {"zero_optimization.legacy_stage1", kNoEffect, kBool, "", "there is one implementation of stage 1"},
    {"zero_optimization.offload_optimizer", kSection, kAny, "", ""},
    {"zero_optimization.offload_optimizer.device", kHonoured, kString, "\"none\"", "where stages 1 to 3 keep moments and master weights, which the CPU then updates: none (the device), cpu (host memory) or nvme (files)"},
    {"zero_optimization.offload_optimizer.nvme_path", kHonoured, kString, "null", "folder of the files; must exist, be writable and not be in memory"},
    {"zero_optimization.offload_optimizer.buffer_count", kHonoured, kInt, "4", "arrays of state, each of at most sub_group_size elements, that are in memory at the same time; at least one for each moment and for separate master weights"},
    {"zero_optimization.offload_optimizer.pin_memory", kHonoured, kBool, "true", "on a GPU, state in host memory is page-locked"},
    {"zero_optimization.offload_optimizer.pipeline_read", kHonoured, kBool, "false", "nvme: state is read ahead of its update, as far as buffer_count allows"},
    {"zero_optimization.offload_optimizer.pipeline_write", kHonoured, kBool, "false", "nvme: updated state is written while the update continues, as far as buffer_count allows"},
    {"zero_optimization.offload_optimizer.fast_init", kNoEffect, kBool, "", "moments always start as reserved space of a file, which reads as zeros"},
    {"zero_optimization.offload_optimizer.ratio", kHonoured, kNumber, "1.0", "stage 3: part of the optimizer state that is offloaded, 0 to 1"},
    {"zero_optimization.offload_optimizer.super_offload", kRefused, kBool, "false", "SuperOffload is not supported"},
    {"zero_optimization.offload_optimizer.cpuadam_cores_perc", kNoEffect, kNumber, "", "applies only with super_offload"},
    {"zero_optimization.offload_param", kSection, kAny, "", ""},
    {"zero_optimization.offload_param.device", kHonoured, kString, "\"none\"", "where stage 3 keeps the slices of parameters: none (the device), cpu (host memory) or nvme (a file)"},
    {"zero_optimization.offload_param.nvme_path", kHonoured, kString, "null", "folder of the file; must exist, be writable and not be in memory"},
    {"zero_optimization.offload_param.buffer_count", kHonoured, kInt, "5", "nvme: gathers whose slices are read ahead, at most"},
    {"zero_optimization.offload_param.buffer_size", kHonoured, kInt, "1e8", "nvme: slices are read in parts of at most this many elements"},
    {"zero_optimization.offload_param.max_in_cpu", kHonoured, kInt, "1e9", "nvme: this many elements of a rank's slices stay in memory, so with the default only a large model has any in files"},
    {"zero_optimization.offload_param.pin_memory", kHonoured, kBool, "true", "on a GPU, slices in host memory are page-locked"},
    {"zero_optimization.cpu_offload", kHonoured, kBool, "false", "true means offload_optimizer.device = \"cpu\", of which it is an older form"},
    {"zero_optimization.cpu_offload_params", kHonoured, kBool, "false", "true means offload_param.device = \"cpu\", of which it is an older form"},
    {"zero_optimization.cpu_offload_param", kHonoured, kBool, "false", "true means offload_param.device = \"cpu\", of which it is an older form"},
    {"zero_optimization.cpu_offload_use_pin_memory", kNoEffect, kBool, "", "state in host memory is page-locked unless pin_memory is false"},
    {"zero_optimization.zero_hpz_partition_size", kRefused, kInt, "1", "ZeRO++ is not supported: there is no second partition inside a machine"},
    {"zero_optimization.zero_quantized_weights", kRefused, kBool, "false", "ZeRO++ is not supported: weights are sent unquantised"},
    {"zero_optimization.zero_quantized_nontrainable_weights", kRefused, kBool, "false", "ZeRO++ is not supported: weights are sent unquantised"},
    {"zero_optimization.zero_quantized_gradients", kRefused, kBool, "false", "ZeRO++ is not supported: gradients are sent unquantised"},
    {"zero_optimization.zeropp_loco_param", kRefused, kAny, "null", "ZeRO++ is not supported"},
    {"zero_optimization.mics_shard_size", kRefused, kInt, "-1", "MiCS is not supported: slices are spread over all data ranks"},
    {"zero_optimization.mics_hierarchical_params_gather", kRefused, kBool, "false", "MiCS is not supported"},
    {"zero_allow_untested_optimizer", kNoEffect, kBool, "", "every optimizer is tested at every stage"},
    {"zero_force_ds_cpu_optimizer", kNoEffect, kBool, "", "the update on the CPU is always this backend's own kernel"},

    // ---- Other features of DeepSpeed ----
    {"activation_checkpointing", kSection, kAny, "", ""},
    {"activation_checkpointing.*", kNoEffect, kAny, "", "all activations are kept; in DeepSpeed, too, these keys affect only models that call its checkpoint function"},
    {"tensor_parallel", kSection, kAny, "", ""},
    {"tensor_parallel.autotp_size", kRefused, kInt, "0", "tensor parallelism is not supported"},
    {"tensor_parallel.*", kNoEffect, kAny, "", "applies only with autotp_size"},
    {"elasticity", kSection, kAny, "", ""},
    {"elasticity.enabled", kRefused, kBool, "false", "the run file fixes the global batch for any number of ranks"},
    {"elasticity.*", kNoEffect, kAny, "", "applies only with elasticity.enabled"},
    {"autotuning", kSection, kAny, "", ""},
    {"autotuning.enabled", kRefused, kBool, "false", "autotuning is not supported; under DeepSpeed's launcher it runs a search instead of the training"},
    {"autotuning.*", kNoEffect, kAny, "", "applies only with autotuning.enabled"},
    {"compile", kSection, kAny, "", ""},
    {"compile.deepcompile", kRefused, kBool, "false", "there is no PyTorch graph to compile"},
    {"compile.*", kNoEffect, kAny, "", "applies only with compile.deepcompile"},
    {"checkpoint", kSection, kAny, "", ""},
    {"checkpoint.tag_validation", kNoEffect, kAny, "", "the host writes one manifest for all ranks"},
    {"checkpoint.load_universal", kNoEffect, kBool, "", "every checkpoint loads at any stage and world size"},
    {"checkpoint.use_node_local_storage", kRefused, kBool, "false", "all ranks write into one folder, run.dir"},
    {"checkpoint.parallel_write", kSection, kAny, "", ""},
    {"checkpoint.parallel_write.*", kNoEffect, kAny, "", "all ranks write their pieces at the same time"},
    {"nebula", kSection, kAny, "", ""},
    {"nebula.enabled", kRefused, kBool, "false", "the host writes checkpoints"},
    {"nebula.*", kNoEffect, kAny, "", "applies only with nebula.enabled"},
    {"sparse_attention", kRefused, kAny, "null", "the host computes attention"},
    {"compression_training", kRefused, kAny, "null", "the host computes the model"},
    {"progressive_layer_drop", kSection, kAny, "", ""},
    {"progressive_layer_drop.enabled", kRefused, kBool, "false", "every block runs in every step"},
    {"progressive_layer_drop.*", kNoEffect, kAny, "", "applies only with progressive_layer_drop.enabled"},
    {"curriculum_learning", kSection, kAny, "", ""},
    {"curriculum_learning.enabled", kRefused, kBool, "false", "the run file chooses the data"},
    {"curriculum_learning.*", kNoEffect, kAny, "", "applies only with curriculum_learning.enabled"},
    {"data_efficiency", kSection, kAny, "", ""},
    {"data_efficiency.enabled", kRefused, kBool, "false", "the run file chooses the data"},
    {"data_efficiency.*", kNoEffect, kAny, "", "applies only with data_efficiency.enabled"},
    {"eigenvalue", kSection, kAny, "", ""},
    {"eigenvalue.enabled", kRefused, kBool, "false", "it is used for compression, which is not supported"},
    {"eigenvalue.*", kNoEffect, kAny, "", "applies only with eigenvalue.enabled"},
    {"hybrid_engine", kSection, kAny, "", ""},
    {"hybrid_engine.enabled", kRefused, kBool, "false", "generation during training is not supported"},
    {"hybrid_engine.*", kNoEffect, kAny, "", "applies only with hybrid_engine.enabled"},
    {"dataloader_drop_last", kNoEffect, kBool, "", "every global batch is complete"},
    {"steps_per_print", kNoEffect, kInt, "", "use metrics.every"},
    {"wall_clock_breakdown", kNoEffect, kBool, "", "metrics.jsonl records the time of every step and of communication"},
    {"memory_breakdown", kNoEffect, kBool, "", "metrics.jsonl records the memory"},
    {"dump_state", kNoEffect, kBool, "", "config.resolved.toml records all values"},
    {"comms_logger", kNoEffect, kAny, "", "metrics.jsonl records the number of collectives and their bytes for every axis"},
    {"flops_profiler", kNoEffect, kAny, "", "the log line shows tflops"},
    {"tensorboard", kNoEffect, kAny, "", "metrics are written to metrics.jsonl"},
    {"wandb", kNoEffect, kAny, "", "metrics are written to metrics.jsonl"},
    {"csv_monitor", kNoEffect, kAny, "", "metrics are written to metrics.jsonl"},
    {"comet", kNoEffect, kAny, "", "metrics are written to metrics.jsonl"},
    {"aio", kSection, kAny, "", ""},
    {"aio.block_size", kHonoured, kInt, "1048576", "bytes of one read or write of a file"},
    {"aio.queue_depth", kHonoured, kInt, "8", "reads and writes in flight, at most"},
    {"aio.intra_op_parallelism", kHonoured, kInt, "1", "threads that read and write where io_uring is not permitted"},
    {"aio.thread_count", kNoEffect, kInt, "", "older name of intra_op_parallelism, which DeepSpeed no longer reads"},
    {"aio.single_submit", kHonoured, kBool, "false", "true hands requests to the kernel one by one, false in batches"},
    {"aio.overlap_events", kNoEffect, kBool, "", "requests always overlap"},
    {"aio.use_gds", kRefused, kBool, "false", "GPUDirect Storage is not supported"},
    {"pipeline", kNoEffect, kAny, "", "pipeline parallelism is not supported"},
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
  if (key.handling == Handling::kHonoured) {
    // Sections of offload have keys of the same names.
    const std::string_view section = last_word(parent(key.path));
    const bool prefixed = section.starts_with("offload_") || section == "aio";
    return (prefixed ? std::string(section) + "_" : "") + std::string(last_word(key.path));
  }
  const bool is_batch_size = key.handling == Handling::kRun && key.form == Form::kInt;
  return is_batch_size ? std::string(key.path) : "";
}

}  // namespace yoke::deepspeed_stub
