#include "plugins/ptd/torchtitan/keys.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace yoke::ptd::torchtitan {
namespace {

using enum compat::Handling;
using enum compat::Form;

constexpr std::string_view kFolder = "all files of a run are in its folder; set run.dir";
constexpr std::string_view kData = "text of the Hub is not read; set data.path";
constexpr std::string_view kMoe = "there are no mixtures of experts";
constexpr std::string_view kHost = "it configures Python's garbage collector";
constexpr std::string_view kPyTorch = "it configures a part of PyTorch that Yoke does not use";

// clang-format off
constexpr Key kKeys[] = {
    {"activation_checkpoint.debug", kNoEffect, kWords, "", "", kPyTorch},
    {"activation_checkpoint.determinism_check", kNoEffect, kWords, "", "", kPyTorch},
    {"activation_checkpoint.early_stop", kNoEffect, kWords, "", "", "ptd recomputes all blocks or none"},
    {"activation_checkpoint.memory_budget", kInert, kWords, "", "", "the mode memory_budget is refused"},
    {"activation_checkpoint.mode", kRun, kWord, "selective", "none|full|selective", "becomes ptd.activation_checkpoint; selective becomes full, which needs less memory and more time"},
    {"activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns", kNoEffect, kWords, "", "", "ptd recomputes all blocks or none"},
    {"activation_checkpoint.preserve_rng_state", kNoEffect, kWords, "", "", "a model without dropout draws no random numbers, and one with dropout draws the same again"},
    {"activation_checkpoint.selective_ac_option", kNoEffect, kWords, "", "", "ptd recomputes all blocks or none"},
    {"activation_checkpoint.visualize_memory_budget_pareto", kInert, kWords, "", "", "the mode memory_budget is refused"},
    {"checkpoint.async_mode", kNoEffect, kWords, "", "", "saves are synchronous"},
    {"checkpoint.create_seed_checkpoint", kRefused, kBool, "", "false", "initial values do not depend on the layout here; train.steps = 0 saves them"},
    {"checkpoint.enable_checkpoint", kRun, kBool, "false", "", "false means checkpoint.every = 0"},
    {"checkpoint.enable_first_step_checkpoint", kNoEffect, kWords, "", "", "only multiples of checkpoint.every are saved"},
    {"checkpoint.enable_ft_dataloader_checkpoints", kInert, kWords, "", "", "TorchFT is refused"},
    {"checkpoint.exclude_from_loading", kRefused, kWords, "", "", "a resumed run continues everything; to start from values only, use model.from"},
    {"checkpoint.export_dtype", kNoEffect, kWords, "", "", "`yoke checkpoint export` writes the dtype that it is asked for"},
    {"checkpoint.folder", kNoEffect, kWords, "", "", kFolder},
    {"checkpoint.initial_load_in_hf", kNote, kWords, "", "", "start from Hugging Face files with model.from"},
    {"checkpoint.initial_load_in_hf_quantized", kNote, kWords, "", "", "start from Hugging Face files with model.from"},
    {"checkpoint.initial_load_model_only", kNote, kWords, "", "", "start from Hugging Face files with model.from"},
    {"checkpoint.initial_load_path", kNote, kWords, "", "", "checkpoints of torchtitan are not read; start from Hugging Face files with model.from"},
    {"checkpoint.interval", kRun, kInt, "500", "", "must equal checkpoint.every"},
    {"checkpoint.keep_latest_k", kRun, kInt, "10", "", "becomes checkpoint.keep; 0, which keeps all, becomes 1000000"},
    {"checkpoint.last_save_in_hf", kNoEffect, kWords, "", "", "`yoke checkpoint export` writes Hugging Face files"},
    {"checkpoint.last_save_model_only", kNoEffect, kWords, "", "", "every checkpoint can be resumed"},
    {"checkpoint.load_only", kRefused, kBool, "", "false", "set checkpoint.every = 0"},
    {"checkpoint.load_step", kNote, kWords, "", "", "set checkpoint.resume"},
    {"comm.init_timeout_seconds", kNoEffect, kWords, "", "", "set launch.join_timeout"},
    {"comm.mode", kRefused, kWord, "", "default", "to see what a run would do without its devices, use `yoke plan`"},
    {"comm.save_traces_file_prefix", kNoEffect, kWords, "", "", kFolder},
    {"comm.save_traces_folder", kNoEffect, kWords, "", "", kFolder},
    {"comm.trace_buf_size", kNoEffect, kWords, "", "", "NCCL's flight recorder is not used; set comm.check"},
    {"comm.train_timeout_seconds", kNoEffect, kWords, "", "", "set comm.timeout"},
    {"compile.backend", kNoEffect, kWords, "", "", "Yoke has no Python code that could be compiled"},
    {"compile.components", kNoEffect, kWords, "", "", "Yoke has no Python code that could be compiled"},
    {"compile.enable", kNoEffect, kWords, "", "", "Yoke has no Python code that could be compiled"},
    {"debug.deterministic_warn_only", kNoEffect, kWords, "", "", kPyTorch},
    {"debug.moe_force_load_balance", kNoEffect, kWords, "", "", kMoe},
    {"experimental.custom_args_module", kRefused, kWord, "", "", "Python modules are not run"},
    {"experimental.custom_import", kRefused, kWord, "", "", "Python modules are not run"},
    {"fault_tolerance.enable", kRefused, kBool, "", "false", "TorchFT does not exist here; `yoke train --restarts` starts a run again"},
    {"fault_tolerance.fragment_sync_delay", kInert, kWords, "", "", "TorchFT is refused"},
    {"fault_tolerance.fragment_update_alpha", kInert, kWords, "", "", "TorchFT is refused"},
    {"fault_tolerance.group_size", kInert, kWords, "", "", "TorchFT is refused"},
    {"fault_tolerance.min_replica_size", kInert, kWords, "", "", "TorchFT is refused"},
    {"fault_tolerance.process_group", kInert, kWords, "", "", "TorchFT is refused"},
    {"fault_tolerance.process_group_timeout_ms", kInert, kWords, "", "", "TorchFT is refused"},
    {"fault_tolerance.replica_id", kInert, kWords, "", "", "TorchFT is refused"},
    {"fault_tolerance.semi_sync_method", kInert, kWords, "", "", "TorchFT is refused"},
    {"fault_tolerance.should_quantize", kInert, kWords, "", "", "TorchFT is refused"},
    {"fault_tolerance.sync_steps", kInert, kWords, "", "", "TorchFT is refused"},
    {"float8.emulate", kNoEffect, kWords, "", "", "products are emulated on the CPU"},
    {"float8.enable_float8_linear", kRun, kBool, "false", "", "older name of the converter float8; becomes precision.product"},
    {"float8.enable_fsdp_float8_all_gather", kRun, kBool, "false", "", "becomes ptd.fp8_gather"},
    {"float8.filter_fqns", kRun, kWords, "", "", "each entry becomes an item of precision.fp8_skip, with the name of Hugging Face; an entry that is no whole name is refused, although torchtitan skips every matrix whose name contains it"},
    {"float8.force_recompute_fp8_weight_in_bwd", kNoEffect, kWords, "", "", "what a backward pass needs of a sharded weight is gathered again"},
    {"float8.moe_fqns_prototype", kRefused, kWords, "", "", kMoe},
    {"float8.precompute_float8_dynamic_scale_for_fsdp", kNoEffect, kWords, "", "", "one all-reduce finds the scales of all gathers in any case"},
    {"float8.recipe_name", kRun, kWord, "tensorwise", "tensorwise|rowwise|rowwise_with_gw_hp", "becomes precision.fp8_recipe"},
    {"job.config_file", kNoEffect, kWords, "", "", "set ptd.torchtitan_config"},
    {"job.custom_config_module", kRefused, kWord, "", "", "Python modules are not run"},
    {"job.description", kNoEffect, kWords, "", "", "it is a comment"},
    {"job.dump_folder", kNoEffect, kWords, "", "", kFolder},
    {"job.print_args", kNoEffect, kWords, "", "", "`yoke config show` prints all values"},
    {"job.print_config", kNoEffect, kWords, "", "", "`yoke config show` prints all values"},
    {"job.save_config_file", kNoEffect, kWords, "", "", "a run keeps its configuration in its folder"},
    {"job.use_for_integration_test", kNoEffect, kWords, "", "", "it concerns torchtitan's own tests"},
    {"lr_scheduler.decay_ratio", kRun, kNumber, "", "", "share of the steps in which the rate falls; becomes lr_schedule.decay_steps"},
    {"lr_scheduler.decay_type", kRun, kWord, "linear", "linear|sqrt|cosine", "becomes train.schedule, or lr_schedule.decay_shape"},
    {"lr_scheduler.min_lr_factor", kRun, kNumber, "0", "", "becomes train.min_lr_factor"},
    {"lr_scheduler.total_steps", kRun, kInt, "", "", "becomes lr_schedule.total_steps"},
    {"lr_scheduler.warmup_steps", kRun, kInt, "200", "", "becomes train.warmup; the rate of the first step is lr / warmup_steps, as in torchtitan since June 2025; before, it was lr / (warmup_steps + 1)"},
    {"memory_estimation.disable_fake_mode", kNoEffect, kWords, "", "", "`yoke plan` predicts the memory"},
    {"memory_estimation.enable", kRefused, kBool, "", "false", "`yoke plan` predicts the memory"},
    {"metrics.disable_color_printing", kNoEffect, kWords, "", "", "set the variable NO_COLOR"},
    {"metrics.enable_tensorboard", kRun, kBool, "false", "", "becomes metrics.tensorboard"},
    {"metrics.enable_wandb", kNoEffect, kWords, "", "", "yoke_trainer.track copies metrics to W&B"},
    {"metrics.log_freq", kRun, kInt, "10", "", "becomes metrics.every"},
    {"metrics.save_for_all_ranks", kNoEffect, kWords, "", "", "metrics are those of all ranks"},
    {"metrics.save_tb_folder", kNoEffect, kWords, "", "", kFolder},
    {"model.converters", kRun, kWords, "", "", "float8 becomes precision.product = \"fp8\""},
    {"model.flavor", kRun, kWord, "debugmodel", "", "8B, 70B and 405B become the dimensions in [model]; give others there, or by model.from"},
    {"model.hf_assets_path", kNote, kWords, "", "", kData},
    {"model.name", kRun, kWord, "llama3", "llama3", "other models: give model.from or model.config, and remove this key"},
    {"model.norm_type", kRefused, kWord, "", "rmsnorm", "the norms of Llama are RMS norms"},
    {"model.print_after_conversion", kNoEffect, kWords, "", "", "a run prints at its start what is in fp8"},
    {"model.tokenizer_path", kNote, kWords, "", "", kData},
    {"mx.filter_fqns", kInert, kWords, "", "", "the converter mx is refused"},
    {"mx.moe_fqns_prototype", kInert, kWords, "", "", "the converter mx is refused"},
    {"mx.mxfp8_dim1_cast_kernel_choice", kInert, kWords, "", "", "the converter mx is refused"},
    {"mx.recipe_name", kInert, kWords, "", "", "the converter mx is refused"},
    {"mx.use_fp8_dim1_cast_triton_kernel", kInert, kWords, "", "", "the converter mx is refused"},
    {"optimizer.beta1", kRun, kNumber, "0.9", "", "must equal train.betas[0]"},
    {"optimizer.beta2", kRun, kNumber, "0.95", "", "must equal train.betas[1]"},
    {"optimizer.early_step_in_backward", kRefused, kBool, "", "false", "an update follows the whole backward"},
    {"optimizer.eps", kRun, kNumber, "1e-08", "", "must equal train.eps"},
    {"optimizer.fused", kNoEffect, kWords, "", "", "there is one implementation"},
    {"optimizer.implementation", kNoEffect, kWords, "", "", "there is one implementation"},
    {"optimizer.lr", kRun, kNumber, "0.0008", "", "must equal train.lr"},
    {"optimizer.name", kRun, kWord, "AdamW", "AdamW|Adam", "must agree with train.optimizer"},
    {"optimizer.weight_decay", kRun, kNumber, "0.1", "", "must equal train.weight_decay; all parameters decay, as with train.decay = \"all\""},
    {"parallelism.context_parallel_degree", kRun, kInt, "1", "", "becomes cp_degree"},
    {"parallelism.context_parallel_rotate_method", kRun, kWord, "allgather", "allgather|alltoall", "becomes ptd.cp_attention: all_gather, or ring"},
    {"parallelism.data_parallel_replicate_degree", kRun, kInt, "1", "", "becomes dp_degree"},
    {"parallelism.data_parallel_shard_degree", kRun, kInt, "-1", "", "becomes dp_shards; -1 is what is left of the ranks"},
    {"parallelism.disable_loss_parallel", kRun, kBool, "false", "", "its opposite becomes ptd.loss_parallel"},
    {"parallelism.enable_async_tensor_parallel", kRun, kBool, "false", "", "with tensor parallelism, true becomes ptd.tp_pieces = tp_degree: PyTorch exchanges the part of one rank at a time"},
    {"parallelism.enable_compiled_autograd", kNoEffect, kWords, "", "", "Yoke has no Python code that could be compiled"},
    {"parallelism.expert_parallel_comm_backend", kNoEffect, kWords, "", "", kMoe},
    {"parallelism.expert_parallel_degree", kRefused, kInt, "", "1", kMoe},
    {"parallelism.expert_tensor_parallel_degree", kRefused, kInt, "", "1", kMoe},
    {"parallelism.fsdp_reshard_after_forward", kRun, kWord, "default", "default|always|never", "becomes ptd.reshard_after_forward; default leaves it unset"},
    {"parallelism.module_fqns_per_model_part", kRefused, kWords, "", "", "set ptd.pp_cut"},
    {"parallelism.pipeline_parallel_degree", kRun, kInt, "1", "", "becomes pp_degree"},
    {"parallelism.pipeline_parallel_expert_parallel_overlap", kNoEffect, kWords, "", "", kMoe},
    {"parallelism.pipeline_parallel_first_stage_less_layers", kRefused, kInt, "", "1", "ptd cuts by the cost of the layers; set ptd.pp_cut for another cut"},
    {"parallelism.pipeline_parallel_last_stage_less_layers", kRefused, kInt, "", "1", "ptd cuts by the cost of the layers; set ptd.pp_cut for another cut"},
    {"parallelism.pipeline_parallel_layers_per_stage", kRefused, kInt, "", "", "set ptd.pp_cut"},
    {"parallelism.pipeline_parallel_microbatch_size", kRun, kInt, "1", "", "with a pipeline, becomes train.micro_batch"},
    {"parallelism.pipeline_parallel_microbatches", kRefused, kInt, "", "", "set train.micro_batch"},
    {"parallelism.pipeline_parallel_schedule", kRun, kWord, "1F1B", "1F1B|GPipe|Interleaved1F1B|LoopedBFS|InterleavedZeroBubble|ZBVZeroBubble|DualPipeV", "becomes ptd.pp_schedule"},
    {"parallelism.pipeline_parallel_schedule_csv", kRefused, kWord, "", "", "set ptd.pp_schedule_file"},
    {"parallelism.pipeline_parallel_split_points", kRefused, kWords, "", "", "set ptd.pp_cut"},
    {"parallelism.tensor_parallel_degree", kRun, kInt, "1", "", "becomes tp_degree"},
    {"profiling.enable_memory_snapshot", kNoEffect, kWords, "", "", "PyTorch's memory snapshots are not written"},
    {"profiling.enable_profiling", kNote, kWords, "", "", "set profile.steps"},
    {"profiling.profile_freq", kNote, kWords, "", "", "set profile.steps"},
    {"profiling.profiler_active", kNote, kWords, "", "", "set profile.steps"},
    {"profiling.profiler_warmup", kNote, kWords, "", "", "set profile.steps"},
    {"profiling.save_memory_snapshot_folder", kNoEffect, kWords, "", "", kFolder},
    {"profiling.save_traces_folder", kNoEffect, kWords, "", "", kFolder},
    {"quantize.grouped_mm.float8.fqns", kRefused, kWords, "", "", kMoe},
    {"quantize.grouped_mm.mx.fqns", kRefused, kWords, "", "", kMoe},
    {"quantize.grouped_mm.mx.recipe_name", kInert, kWords, "", "", kMoe},
    {"training.compile", kNoEffect, kWords, "", "", "Yoke has no Python code that could be compiled"},
    {"training.dataloader.num_workers", kNoEffect, kWords, "", "", "data is read without worker processes"},
    {"training.dataloader.persistent_workers", kNoEffect, kWords, "", "", "data is read without worker processes"},
    {"training.dataloader.pin_memory", kNoEffect, kWords, "", "", "data is read without worker processes"},
    {"training.dataloader.prefetch_factor", kNoEffect, kWords, "", "", "data is read without worker processes"},
    {"training.dataset", kNote, kWords, "", "", kData},
    {"training.dataset_path", kNote, kWords, "", "", kData},
    {"training.deterministic", kRun, kBool, "", "", "sets train.deterministic"},
    {"training.dtype", kRun, kWord, "float32", "float32", "master copies are fp32"},
    {"training.enable_cpu_offload", kRefused, kBool, "", "false", "offload is not built"},
    {"training.gc_debug", kNoEffect, kWords, "", "", kHost},
    {"training.gc_freq", kNoEffect, kWords, "", "", kHost},
    {"training.global_batch_size", kRun, kInt, "-1", "", "must equal train.global_batch; -1 is local_batch_size for each data rank"},
    {"training.local_batch_size", kRun, kInt, "8", "", "without a pipeline, becomes train.micro_batch"},
    {"training.max_norm", kRun, kNumber, "1", "", "must equal train.clip"},
    {"training.mixed_precision_param", kRun, kWord, "bfloat16", "bfloat16|float32", "must agree with precision.param; with tp or pp but without FSDP or cp, torchtitan ignores this key and trains in fp32, and so does the import"},
    {"training.mixed_precision_reduce", kRun, kWord, "float32", "float32", "must agree with precision.reduce"},
    {"training.seed", kRun, kInt, "", "", "must equal seed; torchtitan draws one if it is unset"},
    {"training.seq_len", kRun, kInt, "2048", "", "must equal data.seq_len"},
    {"training.steps", kRun, kInt, "10000", "", "must equal train.steps"},
    {"validation.dataloader.num_workers", kNoEffect, kWords, "", "", "data is read without worker processes"},
    {"validation.dataloader.persistent_workers", kNoEffect, kWords, "", "", "data is read without worker processes"},
    {"validation.dataloader.pin_memory", kNoEffect, kWords, "", "", "data is read without worker processes"},
    {"validation.dataloader.prefetch_factor", kNoEffect, kWords, "", "", "data is read without worker processes"},
    {"validation.dataset", kNote, kWords, "", "", "set eval.path, or data.holdout"},
    {"validation.dataset_path", kNote, kWords, "", "", "set eval.path, or data.holdout"},
    {"validation.enable", kNote, kWords, "", "", "set eval.every"},
    {"validation.freq", kNote, kWords, "", "", "set eval.every"},
    {"validation.local_batch_size", kNoEffect, kWords, "", "", "an evaluation has the batches of training"},
    {"validation.seq_len", kNoEffect, kWords, "", "", "an evaluation has the sequences of training"},
    {"validation.steps", kNote, kWords, "", "", "set eval.batches"},
};
// clang-format on

// Earlier and later paths of keys, or of whole tables.
constexpr std::pair<std::string_view, std::string_view> kOtherPaths[] = {
    {"quantize.linear.float8.", "float8."},
    {"quantize.linear.mx.", "mx."},
    {"checkpoint.enable", "checkpoint.enable_checkpoint"},
    {"checkpoint.initial_load_model_weights_only", "checkpoint.initial_load_model_only"},
    {"checkpoint.last_save_model_weights_only", "checkpoint.last_save_model_only"},
    {"checkpoint.model_weights_only", "checkpoint.last_save_model_only"},
    {"checkpoint.last_save_in_safetensors_format", "checkpoint.last_save_in_hf"},
    {"debug.deterministic", "training.deterministic"},
    {"debug.seed", "training.seed"},
    {"memory_estimation.enabled", "memory_estimation.enable"},
    {"lr_scheduler.lr_min", "lr_scheduler.min_lr_factor"},
    {"optimizer.warmup_steps", "lr_scheduler.warmup_steps"},
    {"training.batch_size", "training.local_batch_size"},
    {"training.warmup_steps", "lr_scheduler.warmup_steps"},
    {"training.data_parallel_replicate_degree", "parallelism.data_parallel_replicate_degree"},
    {"training.data_parallel_shard_degree", "parallelism.data_parallel_shard_degree"},
    {"training.tensor_parallel_degree", "parallelism.tensor_parallel_degree"},
    {"experimental.context_parallel_degree", "parallelism.context_parallel_degree"},
    {"experimental.pipeline_parallel_degree", "parallelism.pipeline_parallel_degree"},
    {"validation.enabled", "validation.enable"},
};

}  // namespace

std::span<const Key> keys() {
  return kKeys;
}

const Key* find_key(std::string_view path) {
  const auto* const found = std::find_if(
      std::begin(kKeys), std::end(kKeys), [&](const Key& key) { return key.name == path; });
  return found == std::end(kKeys) ? nullptr : found;
}

std::string present_path(std::string_view path) {
  for (const auto& [other, present] : kOtherPaths) {
    if (other == path) return std::string(present);
    if (other.ends_with('.') && path.starts_with(other))
      return std::string(present) + std::string(path.substr(other.size()));
  }
  return std::string(path);
}

std::vector<std::string> siblings(std::string_view path) {
  const std::string_view table = path.substr(0, path.rfind('.') + 1);
  std::vector<std::string> names;
  for (const Key& key : kKeys) {
    if (key.name.starts_with(table)) names.emplace_back(key.name.substr(table.size()));
  }
  return names;
}

}  // namespace yoke::ptd::torchtitan
