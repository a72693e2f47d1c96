// A line is compared as text: both sides are written by the same function, so equal values are
// equal texts. A value that neither the plan nor the model contains is not compared here.
#include "sdk/compat/run_lines.hpp"

#include <map>

#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke::compat {
namespace {

using RunValues = std::map<std::string, std::string, std::less<>>;

// Adds what the names and shapes of a Llama's parameters say about it. Other models add nothing.
void add_model(const YokeModelSummary& model, RunValues& values) {
  if (model.seq_len > 0) values["data.seq_len"] = concat(model.seq_len);
  int64_t layers = 0;
  bool has_head = false, is_llama = false;
  for (uint64_t p = 0; p < model.num_params; ++p) {
    const YokeParameter& param = *model.params[p];
    const std::string_view name = view(param.name);
    if (name == "model.embed_tokens.weight") {
      is_llama = true;
      values["model.vocab"] = concat(param.shape[0]);
      values["model.dim"] = concat(param.shape[1]);
    }
    has_head |= name == "lm_head.weight";
    if (name.ends_with("self_attn.q_proj.weight")) {
      ++layers;
      values["model.heads"] = concat(param.tp_parts);
    }
    if (name.ends_with("self_attn.k_proj.weight"))
      values["model.kv_heads"] = concat(param.tp_parts);
    if (name.ends_with("mlp.gate_proj.weight")) values["model.ffn_dim"] = concat(param.shape[0]);
  }
  if (!is_llama) return;
  values["model.layers"] = concat(layers);
  values["model.tied"] = boolean_text(!has_head);
}

RunValues run_values(const YokeModelSummary& model, const YokePlan& plan) {
  const YokeOptimizer& o = *plan.optimizer;
  RunValues values{{"train.global_batch", concat(plan.global_batch)},
                   {"train.micro_batch", concat(plan.micro_batch)},
                   {"train.optimizer", quoted(o.kind == YOKE_SGD ? "sgd" : "adamw")},
                   {"train.clip", concat(o.clip)},
                   {"train.weight_decay", concat(o.weight_decay)},
                   {"precision.param", quoted(dtype_name(plan.param_dtype))},
                   {"precision.reduce", quoted(dtype_name(plan.reduce_dtype))}};
  if (o.kind == YOKE_SGD) values["train.momentum"] = concat(o.momentum);
  if (o.kind == YOKE_ADAMW) {
    values["train.betas"] = pair_text(o.beta1, o.beta2);
    values["train.eps"] = concat(o.eps);
  }
  for (uint64_t p = 0; p < model.num_params && o.weight_decay != 0; ++p) {
    const YokeParameter& param = *model.params[p];
    if (param.trainable != 0 && param.ndim < 2)
      values["train.decay"] = quoted(param.decay != 0 ? "all" : "matrices");
  }
  add_model(model, values);
  return values;
}

// An fp64 run is an fp32 run with more digits.
bool agrees(const RunLine& line, const std::string& run) {
  const bool is_dtype = line.key.starts_with("precision.");
  return line.value == run || (is_dtype && line.value == quoted("fp32") && run == quoted("fp64"));
}

}  // namespace

std::string quoted(std::string_view text) {
  return concat("\"", text, "\"");
}

const char* boolean_text(bool value) {
  return value ? "true" : "false";
}

std::string pair_text(double a, double b) {
  return concat("[", a, ", ", b, "]");
}

// ---- From settings to lines ----

void RunLines::add(std::string_view setting, std::string_view key, std::string value) {
  lines_.push_back({std::string(setting), std::string(key), std::move(value)});
}

void RunLines::integer(std::string_view setting, std::string_view key) {
  if (const auto value = config_.integer(setting)) add(setting, key, concat(*value));
}

void RunLines::number(std::string_view setting, std::string_view key) {
  if (const auto value = config_.number(setting)) add(setting, key, concat(*value));
}

void RunLines::betas(std::string_view first, std::string_view second) {
  const auto beta = [&](std::string_view setting) {
    auto value = config_.number(setting);
    if (value && !(*value >= 0 && *value < 1)) {
      refuse(setting, "at least 0 and below 1", "Adam averages with this factor");
      value.reset();
    }
    return value;
  };
  const auto beta1 = beta(first), beta2 = beta(second);
  if (beta1 && beta2) add(second, "train.betas", pair_text(*beta1, *beta2));
}

void RunLines::refuse(std::string_view setting, std::string_view allowed, std::string_view hint) {
  messages_.push_back(
      {config_.label(setting), config_.shown(setting), std::string(allowed), std::string(hint)});
}

void RunLines::note(std::string_view setting, std::string_view hint) {
  messages_.push_back(
      {config_.label(setting), config_.shown(setting), "", std::string(hint), true});
}

// ---- The comparison ----

void check_lines(const ForeignConfig& config,
                 const std::vector<RunLine>& lines,
                 const YokeModelSummary& model,
                 YokePlan& plan,
                 PlanMessages& messages) {
  const RunValues values = run_values(model, plan);
  for (const RunLine& line : lines) {
    if (line.key == "train.micro_batch" && plan.micro_batch == 0) {
      plan.micro_batch = static_cast<int32_t>(std::stoll(line.value));
      continue;
    }
    const auto run = values.find(line.key);
    if (run == values.end() || agrees(line, run->second)) continue;
    messages.push_back(
        {config.label(line.setting),
         config.shown(line.setting),
         "",
         concat("it means ",
                line.key,
                " = ",
                line.value,
                ", but the run has ",
                run->second,
                "; change one of them: the run file decides what all backends share")});
  }
}

}  // namespace yoke::compat
