// The keys that the engine follows, which a run file can set in [nanotron_compat] as well, and
// those whose values the run file decides.
#include "plugins/nanotron_compat/config/keys.hpp"

namespace yoke::nanotron_compat {
namespace {

using enum compat::Handling;
using enum compat::Form;

// clang-format off
constexpr Key kHonouredRows[] = {
    {"optimizer.zero_stage", kHonoured, kInt, "", "0|1", "0: every data rank updates all parameters. 1: a rank updates its slice of every parameter and keeps moments and fp32 copies of it only. The data ranks become dp_degree with 0, dp_shards with 1"},
    {"optimizer.accumulate_grad_in_fp32", kHonoured, kBool, "", "", "adds gradients of a bf16 model in one fp32 buffer; sets precision.reduce = \"fp32\", and false sets \"bf16\". Refused with fp32 weights, as in nanotron"},
    {"model.ddp_bucket_cap_mb", kHonoured, kInt, "25", "", "size in MiB with which a bucket of gradients is full; a bucket is reduced as soon as its last gradient is complete"},
    {"parallelism.tp_mode", kHonoured, kWord, "ALL_REDUCE", "ALL_REDUCE|REDUCE_SCATTER", "between the products of a layer, each tensor-parallel rank has all of the sequence with ALL_REDUCE, a part of it with REDUCE_SCATTER"},
    {"parallelism.pp_engine", kHonoured, kWord, "afab", "afab|1f1b", "order of a pipeline: all forwards, then all backwards; or forwards and backwards in turn"},
    {"parallelism.recompute_layer", kHonoured, kBool, "false", "", "computes every layer again in the backward instead of keeping its activations"},
};

constexpr Key kRunRows[] = {
    {"checkpoints.checkpoint_interval", kRun, kInt, "", "", "must equal checkpoint.every"},
    {"checkpoints.checkpoints_path", kNote, kWords, "", "", "checkpoints are in the run folder; set run.dir"},
    {"checkpoints.load_lr_scheduler", kNote, kWords, "", "", "a resumed run continues its schedule; to start from values only, use model.from"},
    {"checkpoints.load_optimizer", kNote, kWords, "", "", "a resumed run continues its optimizer; to start from values only, use model.from"},
    {"checkpoints.resume_checkpoint_path", kNote, kWords, "", "", "checkpoints of nanotron are not read; start from Hugging Face files with model.from"},
    {"checkpoints.save_final_state", kNote, kWords, "", "", "the state at the end is always saved"},
    {"checkpoints.save_initial_state", kNote, kWords, "", "", "train.steps = 0 saves the initial state"},
    {"data_stages[].data.dataset.dataset_folder", kRun, kWords, "", "", "is data.path with data.order = \"nanotron\""},
    {"data_stages[].data.dataset.dataset_weights", kRun, kWords, "", "", "is data.weights; one for each folder"},
    {"data_stages[].data.dataset.hf_dataset_or_datasets", kNote, kWords, "", "", "text of the Hub is not read; set data.path"},
    {"data_stages[].data.dataset.token_size_in_bytes", kNote, kWords, "", "", "the metadata of the files say it"},
    {"data_stages[].data.dataset.tokenizer_name", kNote, kWords, "", "", "set data.path"},
    {"data_stages[].data.dataset.vocab_size", kNote, kWords, "", "", "set data.path"},
    {"data_stages[].data.seed", kNote, kWords, "", "", "it acts only with shuffle_files: the order of the files is theirs"},
    {"data_stages[].name", kNote, kWords, "", "", "a run has one stage of data"},
    {"data_stages[].start_training_step", kRun, kInt, "", "1", "a run has one stage of data, which begins at step 1"},
    {"general.project", kNote, kWords, "", "", "set run.dir"},
    {"general.run", kNote, kWords, "", "", "set run.dir"},
    {"general.seed", kRun, kInt, "", "", "must equal seed"},
    {"logging.iteration_step_info_interval", kRun, kInt, "1", "", "must equal metrics.every"},
    {"model.dtype", kRun, kWord, "bfloat16", "bfloat16|float32|float64", "must agree with precision.param"},
    {"model.init_method.path", kNote, kWords, "", "", "checkpoints of nanotron are not read; start from Hugging Face files with model.from"},
    {"model.init_method.scaling_method", kRun, kWord, "NUM_LAYERS", "NUM_LAYERS|num_layers", "the last projections of a layer begin with a standard deviation of 0.02 / sqrt(2 layers)"},
    {"model.init_method.std", kRun, kNumber, "", "0.02", "initial values have a standard deviation of 0.02; start from other values with model.from"},
    {"model.make_vocab_size_divisible_by", kRun, kInt, "1", "", "model.vocab is vocab_size, padded to a multiple of it times parallelism.tp: the softmax of nanotron runs over the padding as well"},
    {"model.model_config.hidden_act", kRun, kWord, "silu", "silu", "the model has SwiGLU"},
    {"model.model_config.hidden_size", kRun, kInt, "4096", "", "must equal model.dim"},
    {"model.model_config.intermediate_size", kRun, kInt, "11008", "", "must equal model.ffn_dim"},
    {"model.model_config.is_llama_config", kRun, kBool, "true", "true", "the model is a Llama"},
    {"model.model_config.is_qwen2_config", kRun, kBool, "", "true", "a Qwen 2 of nanotron without its own features is a Llama"},
    {"model.model_config.max_position_embeddings", kNote, kWords, "", "", "nanotron sets it to the length of a sequence"},
    {"model.model_config.num_attention_heads", kRun, kInt, "32", "", "must equal model.heads"},
    {"model.model_config.num_hidden_layers", kRun, kInt, "32", "", "must equal model.layers"},
    {"model.model_config.num_key_value_heads", kRun, kInt, "", "", "must equal model.kv_heads; the default is num_attention_heads"},
    {"model.model_config.rms_norm_eps", kRun, kNumber, "1e-06", "", "must equal model.norm_eps"},
    {"model.model_config.rope_interleaved", kNote, kWords, "", "", "it orders the rows of queries and keys within a head, which changes no result"},
    {"model.model_config.rope_theta", kRun, kNumber, "10000", "", "must equal model.rope_theta"},
    {"model.model_config.tie_word_embeddings", kRun, kBool, "false", "", "must equal model.tied"},
    {"model.model_config.vocab_size", kRun, kInt, "32000", "", "must equal model.vocab before padding"},
    {"optimizer.adam_beta1", kRun, kNumber, "", "", "must equal train.betas[0]"},
    {"optimizer.adam_beta2", kRun, kNumber, "", "", "must equal train.betas[1]"},
    {"optimizer.adam_eps", kRun, kNumber, "", "", "must equal train.eps"},
    {"optimizer.clip_grad", kRun, kNumber, "0", "", "must equal train.clip; null is its 0, and the 0 of nanotron is refused"},
    {"optimizer.learning_rate_scheduler.learning_rate", kRun, kNumber, "", "", "must equal train.lr"},
    {"optimizer.learning_rate_scheduler.lr_decay_starting_step", kRun, kInt, "", "", "step after which the rate decays; the default is lr_warmup_steps"},
    {"optimizer.learning_rate_scheduler.lr_decay_steps", kRun, kInt, "", "", "length of the decay; the default is tokens.train_steps minus lr_warmup_steps"},
    {"optimizer.learning_rate_scheduler.lr_decay_style", kRun, kWord, "linear", "linear|cosine|1-sqrt", "becomes train.schedule, or lr_schedule.decay_shape"},
    {"optimizer.learning_rate_scheduler.lr_warmup_steps", kRun, kInt, "0", "", "must equal train.warmup; the first rate of a linear warmup is 0"},
    {"optimizer.learning_rate_scheduler.lr_warmup_style", kRun, kWord, "", "linear|constant", "linear rises from 0; constant is no warmup"},
    {"optimizer.learning_rate_scheduler.min_decay_lr", kRun, kNumber, "", "", "train.min_lr_factor is it divided by learning_rate; the default is learning_rate, which is no decay"},
    {"optimizer.optimizer_factory.adam_beta1", kRun, kNumber, "", "", "must equal train.betas[0]"},
    {"optimizer.optimizer_factory.adam_beta2", kRun, kNumber, "", "", "must equal train.betas[1]"},
    {"optimizer.optimizer_factory.adam_eps", kRun, kNumber, "", "", "must equal train.eps"},
    {"optimizer.optimizer_factory.name", kRun, kWord, "adamW", "adamW|sgd", "must agree with train.optimizer"},
    {"optimizer.weight_decay", kRun, kNumber, "", "", "must equal train.weight_decay; all parameters decay, as with train.decay = \"all\""},
    {"optimizer.weight_decay_exclude_named_params", kRun, kWords, "", "", "regular expressions without groups; the parameters whose names in nanotron match one from their begin on do not decay. They must be none, or all norms, which is train.decay"},
    {"parallelism.context_parallel_size", kRun, kInt, "1", "", "becomes cp_degree"},
    {"parallelism.dp", kRun, kInt, "", "", "must equal the number of data ranks"},
    {"parallelism.pp", kRun, kInt, "", "", "becomes pp_degree"},
    {"parallelism.tp", kRun, kInt, "", "", "becomes tp_degree"},
    {"profiler.active", kNote, kWords, "", "", "set profile.steps"},
    {"profiler.profiler_export_path", kNote, kWords, "", "", "set profile.steps"},
    {"profiler.skip_first", kNote, kWords, "", "", "set profile.steps"},
    {"profiler.wait", kNote, kWords, "", "", "set profile.steps"},
    {"profiler.warmup", kNote, kWords, "", "", "set profile.steps"},
    {"tokenizer.tokenizer_name_or_path", kNote, kWords, "", "", "data are token files; the tokenizer is that of data.path"},
    {"tokens.batch_accumulation_per_replica", kRun, kInt, "", "", "train.global_batch must be micro_batch_size times it times parallelism.dp"},
    {"tokens.limit_val_batches", kNote, kWords, "", "", "nanotron never evaluates; set eval.every and eval.batches"},
    {"tokens.micro_batch_size", kRun, kInt, "", "", "must equal train.micro_batch"},
    {"tokens.sequence_length", kRun, kInt, "", "", "must equal data.seq_len"},
    {"tokens.train_steps", kRun, kInt, "", "", "must equal train.steps"},
    {"tokens.val_check_interval", kNote, kWords, "", "", "nanotron never evaluates; set eval.every and eval.batches"},
};
// clang-format on

}  // namespace

std::span<const Key> honoured_keys() {
  return kHonouredRows;
}
std::span<const Key> run_keys() {
  return kRunRows;
}

}  // namespace yoke::nanotron_compat
