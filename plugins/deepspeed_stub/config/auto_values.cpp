// The rules are those of HfTrainerDeepSpeedConfig in transformers, and of DeepSpeedPlugin and
// _prepare_deepspeed in Accelerate. Where only one of the two replaces "auto", that one counts. The
// run file has the place of TrainingArguments: whatever they take from there is left to the run.
//
// They set at least one step of warmup, because DeepSpeed refuses or raises 0. The host raises it
// too, so warmup_num_steps is left to the run as well.
#include "plugins/deepspeed_stub/config/auto_values.hpp"

#include <algorithm>
#include <iterator>

#include "yoke/tensor.hpp"

namespace yoke::deepspeed_stub {
namespace {

struct Rule {
  std::string_view path;
  AutoKind kind;
  const char* value = "";                     // kValue: as JSON
  int64_t (*size)(int64_t hidden) = nullptr;  // kSize
};

constexpr Rule kRules[] = {
    {"train_batch_size", AutoKind::kRun},
    {"train_micro_batch_size_per_gpu", AutoKind::kRun},
    {"gradient_accumulation_steps", AutoKind::kRun},
    {"gradient_clipping", AutoKind::kRun},
    {"optimizer.params.lr", AutoKind::kRun},
    {"optimizer.params.betas", AutoKind::kRun},
    {"optimizer.params.eps", AutoKind::kRun},
    {"optimizer.params.weight_decay", AutoKind::kRun},
    {"scheduler.params.warmup_min_lr", AutoKind::kValue, "0.0"},
    {"scheduler.params.warmup_max_lr", AutoKind::kRun},
    {"scheduler.params.warmup_num_steps", AutoKind::kRun},
    {"scheduler.params.total_num_steps", AutoKind::kRun},
    {"bf16.enabled", AutoKind::kRun},
    {"fp16.enabled", AutoKind::kRun},
    {"zero_optimization.stage", AutoKind::kValue, "2"},
    {"zero_optimization.offload_optimizer.device", AutoKind::kValue, "\"none\""},
    {"zero_optimization.offload_optimizer.nvme_path", AutoKind::kValue, "\"none\""},
    {"zero_optimization.offload_param.device", AutoKind::kValue, "\"none\""},
    {"zero_optimization.offload_param.nvme_path", AutoKind::kValue, "\"none\""},
    {"zero_optimization.stage3_gather_16bit_weights_on_model_save", AutoKind::kValue, "false"},
    {"zero_optimization.reduce_bucket_size",
     AutoKind::kSize,
     "",
     [](int64_t hidden) { return hidden * hidden; }},
    {"zero_optimization.stage3_prefetch_bucket_size",
     AutoKind::kSize,
     "",
     [](int64_t hidden) {
       const auto h = static_cast<double>(hidden);
       return static_cast<int64_t>(0.9 * h * h);
     }},
    {"zero_optimization.stage3_param_persistence_threshold",
     AutoKind::kSize,
     "",
     [](int64_t hidden) { return 10 * hidden; }},
};

// Returns NULL if neither program replaces "auto" at the key.
const Rule* find_rule(std::string_view path) {
  const auto at = std::find_if(
      std::begin(kRules), std::end(kRules), [&](const Rule& rule) { return rule.path == path; });
  return at == std::end(kRules) ? nullptr : at;
}

}  // namespace

AutoKind auto_kind(std::string_view path) {
  const Rule* rule = find_rule(path);
  return rule == nullptr ? AutoKind::kNone : rule->kind;
}

const char* or_auto(std::string_view path) {
  return auto_kind(path) == AutoKind::kNone ? "" : " or \"auto\"";
}

nlohmann::json auto_value(std::string_view path) {
  return nlohmann::json::parse(find_rule(path)->value);
}

int64_t auto_size(std::string_view path, int64_t hidden_size) {
  return find_rule(path)->size(hidden_size);
}

int64_t hidden_size(const YokeModelSummary& model, int32_t dtype) {
  const int64_t tokens = model.seq_len * item_size(dtype);
  if (model.num_blocks == 0 || tokens <= 0) return 0;
  const int64_t bytes = model.blocks[0]->carry_bytes;
  return bytes > 0 && bytes % tokens == 0 ? bytes / tokens : 0;
}

}  // namespace yoke::deepspeed_stub
