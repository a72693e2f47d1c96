// A line is compared as text: both sides are written by the same function, so equal values are
// equal texts. A value that neither the plan nor the model contains is not compared here.
#include "plugins/megatron_compat/config/run_lines.hpp"

#include <algorithm>
#include <map>
#include <numeric>

#include "plugins/megatron_compat/config/schedule_lines.hpp"
#include "yoke/text.hpp"

namespace yoke::megatron_compat {
namespace {

std::string quoted(std::string_view text) {
  return concat("\"", text, "\"");
}
const char* boolean(bool value) {
  return value ? "true" : "false";
}
std::string pair_text(double a, double b) {
  return concat("[", a, ", ", b, "]");
}

// ---- From arguments to lines ----

class Writer {
 public:
  Writer(const Config& config, int64_t ranks, PlanMessages& messages)
      : config_(config), ranks_(ranks), messages_(messages) {}

  std::vector<RunLine> write() {
    write_model();
    const int64_t batch = write_batch();
    write_optimizer();
    write_precision();
    add_schedule_lines(config_, batch, lines_, messages_);
    write_rest();
    return std::move(lines_);
  }

 private:
  void write_model() {
    integer("--num-layers", "model.layers");
    integer("--hidden-size", "model.dim");
    const auto dim = config_.integer("--hidden-size");
    const auto heads = config_.integer("--num-attention-heads");
    integer("--num-attention-heads", "model.heads");
    if (config_.is_given("--group-query-attention")) {
      integer("--num-query-groups", "model.kv_heads");
    } else if (heads) {
      add("--num-attention-heads", "model.kv_heads", concat(*heads));
    }
    if (config_.is_given("--ffn-hidden-size")) {
      integer("--ffn-hidden-size", "model.ffn_dim");
    } else if (dim) {
      add("--ffn-hidden-size", "model.ffn_dim", concat(*dim * 4 * 2 / 3 / 64 * 64));
    }
    check_head_size(dim, heads);
    write_vocabulary();
    const bool untied = config_.is_given("--untie-embeddings-and-output-weights");
    add("--untie-embeddings-and-output-weights", "model.tied", boolean(!untied));
    number("--rotary-base", "model.rope_theta");
    number("--norm-epsilon", "model.norm_eps");
    integer("--seq-length", "data.seq_len");
    const auto positions = config_.integer("--max-position-embeddings");
    const auto length = config_.integer("--seq-length");
    if (positions && length && *positions < *length)
      refuse("--max-position-embeddings", concat(*length, " or more"), "it is below --seq-length");
  }
  void check_head_size(std::optional<int64_t> dim, std::optional<int64_t> heads) {
    const auto channels = config_.integer("--kv-channels");
    if (!channels || !dim || !heads || *heads < 1 || *channels == *dim / *heads) return;
    refuse("--kv-channels",
           concat(*dim / *heads),
           "the heads of the model together are as wide as the model");
  }
  // Megatron pads the vocabulary, and its softmax runs over the padding.
  void write_vocabulary() {
    if (config_.is_given("--padded-vocab-size")) {
      integer("--padded-vocab-size", "model.vocab");
      return;
    }
    const auto size = config_.integer("--vocab-size");
    if (!size || *size < 1) return;
    const int64_t unit = config_.is_given("--no-pad-vocab-size")
                             ? 1
                             : config_.integer("--make-vocab-size-divisible-by").value_or(128) *
                                   degree("--tensor-model-parallel-size");
    if (unit >= 1) add("--vocab-size", "model.vocab", concat((*size + unit - 1) / unit * unit));
  }
  int64_t degree(const char* name) const {
    return std::max<int64_t>(1, config_.integer(name).value_or(1));
  }
  // Returns the global batch, 0 if it is unknown.
  int64_t write_batch() {
    const int64_t micro = config_.integer("--micro-batch-size").value_or(0);
    int64_t batch = config_.integer("--global-batch-size").value_or(0);
    if (micro < 1) {
      refuse("--micro-batch-size", "1 or more", "Megatron requires it");
      return batch;
    }
    const int64_t data = data_ranks(config_, ranks_);
    if (batch == 0) batch = micro * data;
    add("--global-batch-size", "train.global_batch", concat(batch));
    add("--micro-batch-size", "train.micro_batch", concat(micro));
    if (batch % (micro * data) != 0)
      refuse(
          "--global-batch-size",
          concat("a multiple of ", micro * data),
          concat(
              "it is no multiple of --micro-batch-size ", micro, " times ", data, " data rank(s)"));
    return batch;
  }
  void write_optimizer() {
    const bool sgd = config_.word("--optimizer") == "sgd";
    add("--optimizer", "train.optimizer", quoted(sgd ? "sgd" : "adamw"));
    if (sgd) {
      number("--sgd-momentum", "train.momentum");
      if (config_.number("--weight-decay") != 0.0)
        refuse(
            "--weight-decay", "0", "with --optimizer sgd the decay of Megatron is not decoupled");
    } else {
      const auto beta1 = config_.number("--adam-beta1"), beta2 = config_.number("--adam-beta2");
      if (beta1 && beta2) add("--adam-beta2", "train.betas", pair_text(*beta1, *beta2));
      number("--adam-eps", "train.eps");
    }
    number("--weight-decay", "train.weight_decay");
    for (const char* name : {"--start-weight-decay", "--end-weight-decay"}) {
      if (config_.is_given(name) && config_.number(name) != config_.number("--weight-decay"))
        refuse(name, config_.shown("--weight-decay"), "weight decay is constant");
    }
    add("--weight-decay", "train.decay", quoted("matrices"));
    number("--clip-grad", "train.clip");
  }
  void write_precision() {
    add("--bf16", "precision.param", quoted(config_.is_given("--bf16") ? "bf16" : "fp32"));
    for (const auto& [name, dtype] : {std::pair{"--accumulate-allreduce-grads-in-fp32", "fp32"},
                                      std::pair{"--grad-reduce-in-bf16", "bf16"}}) {
      if (config_.is_given(name)) add(name, "precision.reduce", quoted(dtype));
    }
    if (config_.is_given("--grad-reduce-in-bf16") && !config_.is_given("--bf16"))
      refuse("--grad-reduce-in-bf16", "unset", "it needs --bf16");
  }
  void write_rest() {
    const auto evaluations = config_.integer("--eval-iters");
    if (evaluations == 0) {
      add("--eval-iters", "eval.every", "0");
    } else if (config_.is_given("--eval-interval") && evaluations) {
      integer("--eval-interval", "eval.every");
      add("--eval-iters", "eval.batches", concat(*evaluations));
    }
    integer("--save-interval", "checkpoint.every");
    if (config_.is_given("--seed")) integer("--seed", "seed");
    if (config_.is_given("--log-interval")) integer("--log-interval", "metrics.every");
    integer("--check-weight-hash-across-dp-replicas-interval", "verify.every");
    if (config_.is_given("--distributed-timeout-minutes"))
      add("--distributed-timeout-minutes",
          "comm.timeout",
          concat(60 * config_.number("--distributed-timeout-minutes").value_or(10)));
    const auto first = config_.integer("--profile-step-start");
    const auto last = config_.integer("--profile-step-end");
    if (config_.is_given("--profile") && first && last)
      add("--profile", "profile.steps", concat("[", *first + 1, ", ", *last, "]"));
  }

  void integer(const char* name, const char* key) {
    if (const auto value = config_.integer(name)) add(name, key, concat(*value));
  }
  void number(const char* name, const char* key) {
    if (const auto value = config_.number(name)) add(name, key, concat(*value));
  }
  void add(std::string_view argument, std::string_view key, std::string value) {
    lines_.push_back({std::string(argument), std::string(key), std::move(value)});
  }
  void refuse(const char* name, std::string_view allowed, std::string_view hint) {
    messages_.push_back(
        {config_.label(name), config_.shown(name), std::string(allowed), std::string(hint)});
  }

  const Config& config_;
  const int64_t ranks_;
  PlanMessages& messages_;
  std::vector<RunLine> lines_;
};

// ---- The values of a run ----

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
  values["model.tied"] = boolean(!has_head);
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

int64_t data_ranks(const Config& config, int64_t ranks) {
  for (const char* name : {"--tensor-model-parallel-size",
                           "--pipeline-model-parallel-size",
                           "--context-parallel-size"})
    ranks /= std::max<int64_t>(1, config.integer(name).value_or(1));
  return std::max<int64_t>(1, ranks);
}

std::vector<RunLine> run_lines(const Config& config, int64_t ranks, PlanMessages& messages) {
  if (!config.has_file()) return {};
  return Writer(config, ranks, messages).write();
}

void check_lines(const Config& config,
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
        {config.label(line.argument),
         config.shown(line.argument),
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

}  // namespace yoke::megatron_compat
