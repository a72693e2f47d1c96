// Names of keys of transformers' Trainer, Accelerate, DeepSpeed, torchtitan, Megatron, nanotron and
// nanoGPT. The nearest spelling of such a name is often the wrong key: `epochs` is near to `eps`.
#include "core/config/synonyms.hpp"

#include <algorithm>
#include <cctype>
#include <string_view>
#include <utility>

namespace yoke {
namespace {

constexpr std::string_view kEpochs =
    "train.steps; a run prints at its start how many epochs its steps are";
constexpr std::string_view kAccumulation =
    "train.global_batch and train.micro_batch; a step accumulates global_batch / (micro_batch x "
    "data ranks) micro-batches";

constexpr std::string_view kRecompute =
    "the option of the backend for activation checkpointing; `yoke backends info NAME` lists its "
    "options";

constexpr std::string_view kRanks =
    "--nproc N, a flag of the command line; the degrees dp_shards, tp_degree and so on divide the "
    "ranks";

constexpr std::pair<std::string_view, std::string_view> kNames[] = {
    {"accumulate_grad_batches", kAccumulation},
    {"activation_checkpointing", kRecompute},
    {"adam_beta1", "train.betas"},
    {"adam_beta2", "train.betas"},
    {"adam_epsilon", "train.eps"},
    {"batch_size", "train.global_batch"},
    {"beta1", "train.betas"},
    {"beta2", "train.betas"},
    {"bf16", "precision.param = \"bf16\""},
    {"block_size", "data.seq_len"},
    {"clip_grad", "train.clip"},
    {"context_parallel_degree", "cp_degree"},
    {"context_parallel_size", "cp_degree"},
    {"data_parallel_replicate_degree", "dp_degree"},
    {"data_parallel_shard_degree", "dp_shards"},
    {"dataset", "data.path"},
    {"dtype", "precision.param"},
    {"epochs", kEpochs},
    {"eval_interval", "eval.every"},
    {"eval_steps", "eval.every"},
    {"fp16", "precision.param = \"fp16\""},
    {"global_batch_size", "train.global_batch"},
    {"grad_clip", "train.clip"},
    {"gradient_accumulation", kAccumulation},
    {"gradient_accumulation_steps", kAccumulation},
    {"gradient_checkpointing", kRecompute},
    {"gradient_clipping", "train.clip"},
    {"learning_rate", "train.lr"},
    {"load_best_model_at_end", "checkpoint.best"},
    {"log_interval", "metrics.every"},
    {"logging_steps", "metrics.every"},
    {"lr_scheduler", "train.schedule"},
    {"lr_scheduler_type", "train.schedule"},
    {"max_grad_norm", "train.clip"},
    {"max_iters", "train.steps"},
    {"max_length", "data.seq_len"},
    {"max_norm", "train.clip"},
    {"max_seq_length", "data.seq_len"},
    {"max_steps", "train.steps"},
    {"micro_batch_size", "train.micro_batch"},
    {"mixed_precision", "precision.param"},
    {"model_name_or_path", "model.from"},
    {"nproc", kRanks},
    {"nproc_per_node", kRanks},
    {"num_epochs", kEpochs},
    {"num_gpus", kRanks},
    {"num_processes", kRanks},
    {"num_train_epochs", kEpochs},
    {"output_dir", "run.dir"},
    {"per_device_train_batch_size", "train.micro_batch"},
    {"pipeline_model_parallel_size", "pp_degree"},
    {"pipeline_parallel_degree", "pp_degree"},
    {"resume_from_checkpoint", "checkpoint.resume"},
    {"save_interval", "checkpoint.every"},
    {"save_steps", "checkpoint.every"},
    {"save_total_limit", "checkpoint.keep"},
    {"seq_length", "data.seq_len"},
    {"sequence_length", "data.seq_len"},
    {"tensor_model_parallel_size", "tp_degree"},
    {"tensor_parallel_degree", "tp_degree"},
    {"torch_dtype", "precision.param"},
    {"train_batch_size", "train.global_batch"},
    {"train_iters", "train.steps"},
    {"train_micro_batch_size_per_gpu", "train.micro_batch"},
    {"warmup_iters", "train.warmup"},
    {"warmup_steps", "train.warmup"},
    {"world_size", kRanks},
};

// Values of PyTorch and other systems, in lower case. The nearest spelling of "gpu" is "cpu".
constexpr std::pair<std::string_view, std::string_view> kValues[] = {{"gpu", "cuda"},
                                                                     {"bfloat16", "bf16"},
                                                                     {"float16", "fp16"},
                                                                     {"half", "fp16"},
                                                                     {"float32", "fp32"},
                                                                     {"float64", "fp64"},
                                                                     {"random", "shuffled"}};

}  // namespace

std::string meant_value(const std::string& value, const std::vector<std::string>& allowed) {
  std::string lower = value;
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const auto& [other, here] : kValues) {
    if (lower == other) lower = here;
  }
  return std::find(allowed.begin(), allowed.end(), lower) == allowed.end() ? "" : lower;
}

std::string synonym(const std::string& key) {
  const std::string_view last = std::string_view(key).substr(key.rfind('.') + 1);
  const auto* const found = std::find_if(
      std::begin(kNames), std::end(kNames), [&](const auto& n) { return n.first == last; });
  return found == std::end(kNames) ? "" : "use " + std::string(found->second);
}

}  // namespace yoke
