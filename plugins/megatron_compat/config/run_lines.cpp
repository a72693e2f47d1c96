#include "plugins/megatron_compat/config/run_lines.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "plugins/megatron_compat/config/schedule_lines.hpp"
#include "sdk/compat/number.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke::megatron_compat {
namespace {

using compat::boolean_text;
using compat::pair_text;
using compat::quoted;

constexpr int64_t kMostSequences = 1'000'000;  // sequences of a micro-batch

class Writer {
 public:
  Writer(const Config& config, int64_t data_ranks, PlanMessages& messages)
      : config_(config), data_ranks_(data_ranks), lines_(config, messages) {}

  std::vector<compat::RunLine> write() {
    write_model();
    const int64_t batch = write_batch();
    write_optimizer();
    write_precision();
    write_data();
    add_schedule_lines(config_, batch, lines_);
    write_rest();
    return lines_.lines();
  }

 private:
  void write_model() {
    lines_.integer("--num-layers", "model.layers");
    lines_.integer("--hidden-size", "model.dim");
    const auto dim = config_.integer("--hidden-size");
    const auto heads = config_.integer("--num-attention-heads");
    lines_.integer("--num-attention-heads", "model.heads");
    if (config_.is_given("--group-query-attention")) {
      lines_.integer("--num-query-groups", "model.kv_heads");
    } else if (heads) {
      lines_.add("--num-attention-heads", "model.kv_heads", concat(*heads));
    }
    if (config_.is_given("--ffn-hidden-size")) {
      lines_.integer("--ffn-hidden-size", "model.ffn_dim");
    } else if (dim) {
      lines_.add("--ffn-hidden-size", "model.ffn_dim", concat(*dim * 4 * 2 / 3 / 64 * 64));
    }
    check_head_size(dim, heads);
    write_vocabulary();
    const bool untied = config_.is_given("--untie-embeddings-and-output-weights");
    lines_.add("--untie-embeddings-and-output-weights", "model.tied", boolean_text(!untied));
    lines_.number("--rotary-base", "model.rope_theta");
    lines_.number("--norm-epsilon", "model.norm_eps");
    lines_.integer("--seq-length", "data.seq_len");
    const auto positions = config_.integer("--max-position-embeddings");
    const auto length = config_.integer("--seq-length");
    if (positions && length && *positions < *length)
      lines_.refuse(
          "--max-position-embeddings", concat(*length, " or more"), "it is below --seq-length");
  }
  void check_head_size(std::optional<int64_t> dim, std::optional<int64_t> heads) {
    const auto channels = config_.integer("--kv-channels");
    if (!channels || !dim || !heads || *heads < 1 || *channels == *dim / *heads) return;
    lines_.refuse("--kv-channels",
                  concat(*dim / *heads),
                  "the heads of the model together are as wide as the model");
  }
  // Megatron pads the vocabulary, and its softmax runs over the padding.
  void write_vocabulary() {
    if (config_.is_given("--padded-vocab-size")) {
      lines_.integer("--padded-vocab-size", "model.vocab");
      return;
    }
    const auto size = config_.integer("--vocab-size");
    if (!size || *size < 1) return;
    const int64_t unit = config_.is_given("--no-pad-vocab-size")
                             ? 1
                             : config_.integer("--make-vocab-size-divisible-by").value_or(128) *
                                   degree("--tensor-model-parallel-size");
    if (unit < 1) return;
    const int64_t padded = pad(*size, unit), with_end = pad(*size + 1, unit);
    if (may_add_end() && with_end != padded)
      return lines_.refuse(
          "--vocab-size",
          concat("--padded-vocab-size ", with_end, " or ", padded, " instead"),
          "before core 0.18, NullTokenizer has one id more, the end of a document");
    lines_.add("--vocab-size", "model.vocab", concat(padded));
  }
  static int64_t pad(int64_t size, int64_t unit) { return (size + unit - 1) / unit * unit; }
  // Returns whether the vocabulary has one id more than --vocab-size in some release. The releases
  // that know any of these other arguments do not add it.
  bool may_add_end() const {
    return config_.word("--tokenizer-type") == "NullTokenizer" &&
           !config_.is_given("--no-pad-vocab-size") &&
           !config_.is_given("--null-tokenizer-eod-id") &&
           !config_.is_given("--null-tokenizer-pad-id");
  }
  int64_t degree(const char* name) const {
    return std::max<int64_t>(1, config_.integer(name).value_or(1));
  }
  // Returns the global batch, 0 if it is unknown.
  int64_t write_batch() {
    const int64_t micro = config_.integer("--micro-batch-size").value_or(0);
    int64_t batch = config_.integer("--global-batch-size").value_or(0);
    if (micro < 1 || micro > kMostSequences) {
      lines_.refuse("--micro-batch-size", concat("1 to ", kMostSequences), "Megatron requires it");
      return batch;
    }
    const int64_t data = data_ranks_;
    if (batch == 0) batch = micro * data;
    lines_.add("--global-batch-size", "train.global_batch", concat(batch));
    lines_.add("--micro-batch-size", "train.micro_batch", concat(micro));
    if (batch % (micro * data) != 0)
      lines_.refuse(
          "--global-batch-size",
          concat("a multiple of ", micro * data),
          concat(
              "it is no multiple of --micro-batch-size ", micro, " times ", data, " data rank(s)"));
    return batch;
  }
  void write_optimizer() {
    const bool sgd = config_.word("--optimizer") == "sgd";
    lines_.add("--optimizer", "train.optimizer", quoted(sgd ? "sgd" : "adamw"));
    if (sgd) {
      lines_.number("--sgd-momentum", "train.momentum");
      if (config_.number("--weight-decay") != 0.0)
        lines_.refuse(
            "--weight-decay", "0", "with --optimizer sgd the decay of Megatron is not decoupled");
    } else {
      lines_.betas("--adam-beta1", "--adam-beta2");
      lines_.number("--adam-eps", "train.eps");
    }
    lines_.number("--weight-decay", "train.weight_decay");
    for (const char* name : {"--start-weight-decay", "--end-weight-decay"}) {
      if (config_.is_given(name) && config_.number(name) != config_.number("--weight-decay"))
        lines_.refuse(name, config_.shown("--weight-decay"), "weight decay is constant");
    }
    lines_.add("--weight-decay", "train.decay", quoted("matrices"));
    lines_.number("--clip-grad", "train.clip");
  }
  void write_precision() {
    lines_.add("--bf16", "precision.param", quoted(config_.is_given("--bf16") ? "bf16" : "fp32"));
    for (const auto& [name, dtype] : {std::pair{"--accumulate-allreduce-grads-in-fp32", "fp32"},
                                      std::pair{"--grad-reduce-in-bf16", "bf16"}}) {
      if (config_.is_given(name)) lines_.add(name, "precision.reduce", quoted(dtype));
    }
    if (config_.is_given("--grad-reduce-in-bf16") && !config_.is_given("--bf16"))
      lines_.refuse("--grad-reduce-in-bf16", "unset", "it needs --bf16");
  }
  // Writes the datasets that an argument names, "a" or "0.7 a 0.3 b", and their weights, if blends
  // are allowed. Megatron blends a single dataset with a weight, too.
  void write_datasets(const char* name, const char* key, bool blends) {
    const std::vector<std::string> words = config_.words(name);
    if (words.empty()) return lines_.refuse(name, "a dataset", "it names none");
    const bool weighted = words.size() % 2 == 0;
    std::vector<std::string> weights, paths;
    for (size_t i = 0; i < words.size(); ++i) {
      if (!weighted || i % 2 == 1) {
        paths.push_back(quoted(words[i]));
        continue;
      }
      const auto weight = compat::parsed<double>(words[i]);
      if (!weight || !std::isfinite(*weight) || *weight <= 0)
        return lines_.refuse(
            name, "a weight above 0 before each dataset", "sizes do not become weights");
      weights.push_back(concat(*weight));
    }
    if (paths.size() > 1 && (!weighted || !blends))
      return lines_.refuse(name,
                           blends ? "one dataset, or a weight before each" : "one dataset",
                           blends ? "sizes do not become weights" : "a run evaluates on one");
    lines_.add(name, key, paths.size() == 1 ? paths[0] : "[" + join(paths) + "]");
    // Megatron ignores the weight of a single dataset that is for training only.
    const bool is_blend = paths.size() > 1 || std::string_view(name) == "--data-path";
    if (blends && weighted && is_blend) lines_.add(name, "data.weights", "[" + join(weights) + "]");
  }
  // Returns the shares of --split, between which Megatron allows any other characters; empty if
  // they are no numbers.
  std::vector<double> shares() const {
    std::vector<double> all;
    std::string digits;
    for (const char c : config_.word("--split").value_or("") + ",") {
      if (c == '.' || (c >= '0' && c <= '9')) {
        digits += c;
        continue;
      }
      if (digits.empty()) continue;
      const auto share = compat::parsed<double>(std::exchange(digits, ""));
      if (!share) return {};
      all.push_back(*share);
    }
    return all;
  }
  void write_split() {
    std::vector<std::string> texts;
    for (const double share : shares()) texts.push_back(concat(share));
    if (texts.empty()) return lines_.refuse("--split", "numbers", "such as 969,30,1");
    lines_.add("--split", "data.split", "[" + join(texts) + "]");
  }
  void write_data() {
    const bool apart = config_.is_given("--train-data-path");
    const char* name = apart ? "--train-data-path" : "--data-path";
    if (!config_.is_given(name)) return;
    write_datasets(name, "data.path", true);
    lines_.add(name, "data.order", quoted("megatron"));
    if (!config_.is_given("--seed")) lines_.integer("--seed", "seed");
    if (!apart) return write_split();
    if (evaluates()) {
      write_datasets("--valid-data-path", "eval.path", false);
    } else {
      lines_.add(name, "data.split", "[1]");
    }
  }
  // Returns whether Megatron has data to evaluate on. Without any it never evaluates.
  bool has_evaluation_data() const {
    if (config_.is_given("--train-data-path")) return config_.is_given("--valid-data-path");
    const std::vector<double> split = shares();
    return !config_.is_given("--data-path") || (split.size() > 1 && split[1] > 0);
  }
  // Returns whether write_rest() writes an interval of evaluations.
  bool evaluates() const {
    return config_.is_given("--eval-interval") && config_.integer("--eval-iters").value_or(0) > 0 &&
           has_evaluation_data();
  }
  void write_rest() {
    const auto evaluations = config_.integer("--eval-iters");
    if (evaluations == 0 || (evaluations && !has_evaluation_data())) {
      lines_.add("--eval-iters", "eval.every", "0");
    } else if (evaluates()) {
      lines_.integer("--eval-interval", "eval.every");
      lines_.add("--eval-iters", "eval.batches", concat(*evaluations));
    }
    lines_.integer("--save-interval", "checkpoint.every");
    if (config_.is_given("--seed")) lines_.integer("--seed", "seed");
    if (config_.is_given("--deterministic-mode"))
      lines_.add("--deterministic-mode", "train.deterministic", "true");
    if (config_.is_given("--log-interval")) lines_.integer("--log-interval", "metrics.every");
    lines_.integer("--check-weight-hash-across-dp-replicas-interval", "verify.every");
    if (config_.is_given("--distributed-timeout-minutes"))
      lines_.add("--distributed-timeout-minutes",
                 "comm.timeout",
                 concat(60 * config_.number("--distributed-timeout-minutes").value_or(10)));
    const auto first = config_.integer("--profile-step-start");
    const auto last = config_.integer("--profile-step-end");
    if (config_.is_given("--profile") && first && last)
      lines_.add("--profile", "profile.steps", concat("[", *first + 1, ", ", *last, "]"));
  }

  const Config& config_;
  const int64_t data_ranks_;
  compat::RunLines lines_;
};

}  // namespace

int64_t data_ranks(const Config& config, int64_t ranks) {
  for (const char* name : {"--tensor-model-parallel-size",
                           "--pipeline-model-parallel-size",
                           "--context-parallel-size"})
    ranks /= std::max<int64_t>(1, config.integer(name).value_or(1));
  return std::max<int64_t>(1, ranks);
}

std::vector<compat::RunLine> run_lines(const Config& config,
                                       int64_t data_ranks,
                                       PlanMessages& messages) {
  if (!config.has_file()) return {};
  return Writer(config, data_ranks, messages).write();
}

}  // namespace yoke::megatron_compat
