// The keys that are refused unless their value leaves the feature off, and those that change
// nothing.
#include "plugins/nanotron_compat/config/keys.hpp"

namespace yoke::nanotron_compat {
namespace {

using enum compat::Handling;
using enum compat::Form;

// clang-format off
constexpr Key kRefusedRows[] = {
    {"data_stages[].data.dataset.dataset_max_tokens", kRefused, kWord, "", "false", "all tokens of data.path are read"},
    {"data_stages[].data.dataset.pad_samples_to_global_batch_size", kRefused, kBool, "", "false", "batches are always whole"},
    {"data_stages[].data.dataset.return_positions", kRefused, kBool, "", "false", "attention covers the whole sequence"},
    {"data_stages[].data.dataset.sft_dataloader", kRefused, kBool, "", "false", "packed chats are not read; set data.path to tokens"},
    {"data_stages[].data.dataset.shuffle_files", kRefused, kBool, "", "false", "the sampler shuffles sequences, not files"},
    {"data_stages[].data.dataset.skip_in_stream", kRefused, kBool, "", "false", "a resumed run continues where it stopped without this key"},
    {"data_stages[].data.dataset.use_old_brrr_dataloader", kRefused, kBool, "", "false", "this format is not read; set data.path"},
    {"data_stages[].sequence_length", kRefused, kInt, "", "", "all steps have tokens.sequence_length; remove it"},
    {"model.init_method.use_mup", kRefused, kBool, "", "false", "muP is not supported; use std"},
    {"model.model_config._use_doc_masking", kRefused, kBool, "", "false", "attention covers the whole sequence"},
    {"model.model_config.attention_bias", kRefused, kBool, "", "false", "the model has no biases"},
    {"model.model_config.flex_attention_mask", kRefused, kWord, "", "false", "attention is causal"},
    {"model.model_config.is_starcoder2_config", kRefused, kBool, "", "false", "Starcoder2 is another model than a Llama"},
    {"model.model_config.moe_config.num_experts", kRefused, kInt, "", "", "mixtures of experts are not supported; remove moe_config"},
    {"model.model_config.no_rope_layer", kRefused, kWord, "", "false", "every layer has rotary positions"},
    {"model.model_config.pad_token_id", kRefused, kInt, "", "", "targets that do not count are those with the id data.pad_token; remove it"},
    {"model.model_config.rope_scaling", kRefused, kWord, "", "", "rotary positions are not scaled; remove it"},
    {"model.model_config.rope_seq_len_interpolation_factor", kRefused, kWord, "", "false", "rotary positions are not scaled"},
    {"model.model_config.sliding_window_size", kRefused, kWord, "", "false", "attention covers the whole sequence"},
    {"model.model_config.z_loss_enabled", kRefused, kBool, "", "false", "the loss has no z term"},
    {"parallelism.expert_parallel_size", kRefused, kInt, "", "1", "mixtures of experts are not supported"},
    {"s3_upload.upload_s3_path", kRefused, kWord, "", "", "checkpoints stay in the run folder; remove s3_upload"},
};

constexpr std::string_view kNoEffect0[] = {
    "checkpoints.checkpoints_path_is_shared_file_system",
};
constexpr std::string_view kNoEffect1[] = {
    "data_stages[].data.dataset.dataset_read_path",
};
constexpr std::string_view kNoEffect2[] = {
    "data_stages[].data.num_loading_workers",
};
constexpr std::string_view kNoEffect3[] = {
    "general.benchmark_csv_path",
};
constexpr std::string_view kNoEffect4[] = {
    "general.consumed_train_samples",
    "general.step",
};
constexpr std::string_view kNoEffect5[] = {
    "general.ignore_sanity_checks",
};
constexpr std::string_view kNoEffect6[] = {
    "lighteval.batch_size",
    "lighteval.checkpoints_path",
    "lighteval.eval_config_override",
    "lighteval.eval_interval",
    "lighteval.eval_interval_file",
    "lighteval.generation.eos",
    "lighteval.generation.n_samples",
    "lighteval.generation.sampler",
    "lighteval.generation.seed",
    "lighteval.generation.temperature",
    "lighteval.generation.top_k",
    "lighteval.generation.top_p",
    "lighteval.generation.use_cache",
    "lighteval.local_checkpoint_dir",
    "lighteval.logging.hub_repo_details",
    "lighteval.logging.hub_repo_results",
    "lighteval.logging.hub_repo_tensorboard",
    "lighteval.logging.local_output_path",
    "lighteval.logging.push_details_to_hub",
    "lighteval.logging.push_results_to_hub",
    "lighteval.logging.push_results_to_tensorboard",
    "lighteval.logging.tensorboard_metric_prefix",
    "lighteval.logs_path",
    "lighteval.nanotron_path",
    "lighteval.output_dir",
    "lighteval.parallelism.context_parallel_size",
    "lighteval.parallelism.dp",
    "lighteval.parallelism.expert_parallel_size",
    "lighteval.parallelism.pp",
    "lighteval.parallelism.pp_engine",
    "lighteval.parallelism.recompute_layer",
    "lighteval.parallelism.tp",
    "lighteval.parallelism.tp_linear_async_communication",
    "lighteval.parallelism.tp_mode",
    "lighteval.parallelism.tp_recompute_allgather",
    "lighteval.s3_save_path",
    "lighteval.slurm.cpus_per_task",
    "lighteval.slurm.gpus_per_node",
    "lighteval.slurm.hf_cache",
    "lighteval.slurm.partition",
    "lighteval.slurm.qos",
    "lighteval.slurm.reservation",
    "lighteval.slurm.time",
    "lighteval.slurm_script_dir",
    "lighteval.slurm_template",
    "lighteval.tasks.custom_tasks",
    "lighteval.tasks.dataset_loading_processes",
    "lighteval.tasks.max_samples",
    "lighteval.tasks.multichoice_continuations_start_space",
    "lighteval.tasks.no_multichoice_continuations_start_space",
    "lighteval.tasks.num_fewshot_seeds",
    "lighteval.tasks.tasks",
    "lighteval.upload_to_wandb",
    "lighteval.wandb.wandb_entity",
    "lighteval.wandb.wandb_project",
    "lighteval.wandb.wandb_run_name",
    "lighteval.wandb_entity",
    "lighteval.wandb_project",
};
constexpr std::string_view kNoEffect7[] = {
    "logging.log_level",
    "logging.log_level_replica",
    "metrics_logging.log_detail_interval",
    "metrics_logging.log_level",
};
constexpr std::string_view kNoEffect8[] = {
    "model.model_config._attn_implementation",
    "model.model_config._fused_rms_norm",
    "model.model_config._fused_rotary_emb",
    "model.model_config._use_qkv_packed",
    "model.model_config.log_attn_probs",
    "model.model_config.ring_attn_heads_k_stride",
    "optimizer.optimizer_factory.torch_adam_is_fused",
    "optimizer.torch_adam_is_fused",
};
constexpr std::string_view kNoEffect9[] = {
    "model.model_config.bos_token_id",
    "model.model_config.eos_token_id",
    "model.model_config.initializer_range",
    "model.model_config.pretraining_tp",
    "model.model_config.use_cache",
};
constexpr std::string_view kNoEffect10[] = {
    "parallelism.tp_linear_async_communication",
};
constexpr std::string_view kNoEffect11[] = {
    "parallelism.tp_recompute_allgather",
};
constexpr std::string_view kNoEffect12[] = {
    "profiler.export_chrome_trace",
    "profiler.profile_memory",
    "profiler.record_shapes",
    "profiler.repeat",
    "profiler.with_stack",
};
constexpr std::string_view kNoEffect13[] = {
    "tokenizer.tokenizer_max_length",
    "tokenizer.tokenizer_revision",
};
constexpr std::string_view kNoEffect14[] = {
    "tokens.limit_test_batches",
};

constexpr Group kNoEffectGroups[] = {
    {kNoEffect, "rank 0 writes the checkpoint", kNoEffect0},
    {kNoEffect, "names a copy of the data", kNoEffect1},
    {kNoEffect, "decides how data are loaded, not which", kNoEffect2},
    {kNoEffect, "names a file of measurements", kNoEffect3},
    {kNoEffect, "is written there by a checkpoint", kNoEffect4},
    {kNoEffect, "concerns checks of nanotron; see verify.every", kNoEffect5},
    {kNoEffect, "evaluation is by another program; see eval.every", kNoEffect6},
    {kNoEffect, "concerns the log of nanotron", kNoEffect7},
    {kNoEffect, "selects a kernel", kNoEffect8},
    {kNoEffect, "training does not read it", kNoEffect9},
    {kNoEffect, "decides when communication of tensor parallelism starts", kNoEffect10},
    {kNoEffect, "concerns the memory of tensor parallelism", kNoEffect11},
    {kNoEffect, "concerns the content of a trace", kNoEffect12},
    {kNoEffect, "concerns the tokenizer, and data are token files", kNoEffect13},
    {kNoEffect, "there is no test set", kNoEffect14},
};

constexpr std::string_view kInert0[] = {
    "data_stages[].data.dataset.dataset_overwrite_cache",
    "data_stages[].data.dataset.dataset_processing_num_proc_per_process",
    "data_stages[].data.dataset.debug_max_samples",
    "data_stages[].data.dataset.hf_dataset_config_name",
    "data_stages[].data.dataset.hf_dataset_splits",
    "data_stages[].data.dataset.text_column_name",
};
constexpr std::string_view kInert1[] = {
    "model.model_config.activation_function",
    "model.model_config.attention_softmax_in_fp32",
    "model.model_config.attn_pdrop",
    "model.model_config.embd_pdrop",
    "model.model_config.global_attn_layers",
    "model.model_config.grouped_query",
    "model.model_config.layer_norm_epsilon",
    "model.model_config.multi_query",
    "model.model_config.num_kv_heads",
    "model.model_config.resid_pdrop",
    "model.model_config.scale_attention_softmax_in_fp32",
    "model.model_config.scale_attn_weights",
    "model.model_config.use_position_embeddings",
    "model.model_config.use_rotary_embeddings",
};
constexpr std::string_view kInert2[] = {
    "model.model_config.moe_config.enable_shared_expert",
    "model.model_config.moe_config.layers",
    "model.model_config.moe_config.moe_intermediate_size",
    "model.model_config.moe_config.router_aux_loss_coef",
    "model.model_config.moe_config.shared_expert_intermediate_size",
    "model.model_config.moe_config.token_dispatcher_type",
    "model.model_config.moe_config.top_k",
};
constexpr std::string_view kInert3[] = {
    "model.model_config.z_loss_coefficient",
};
constexpr std::string_view kInert4[] = {
    "s3_upload.remove_after_upload",
    "s3_upload.s5cmd_concurrency",
    "s3_upload.s5cmd_numworkers",
    "s3_upload.s5cmd_path",
};

constexpr Group kInertGroups[] = {
    {kInert, "acts only with hf_dataset_or_datasets", kInert0},
    {kInert, "acts only with is_starcoder2_config", kInert1},
    {kInert, "acts only with mixtures of experts", kInert2},
    {kInert, "acts only with z_loss_enabled", kInert3},
    {kInert, "acts only with s3_upload", kInert4},
};
// clang-format on

}  // namespace

std::span<const Key> refused_keys() {
  return kRefusedRows;
}
std::span<const Group> no_effect_groups() {
  return kNoEffectGroups;
}
std::span<const Group> inert_groups() {
  return kInertGroups;
}

}  // namespace yoke::nanotron_compat
