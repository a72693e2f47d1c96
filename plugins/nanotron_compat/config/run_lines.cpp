#include "plugins/nanotron_compat/config/run_lines.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <regex>
#include <string>

#include "plugins/nanotron_compat/config/schedule_lines.hpp"
#include "plugins/nanotron_compat/layout.hpp"
#include "sdk/compat/number.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke::nanotron_compat {
namespace {

using compat::quoted;

constexpr int64_t kMostLayers = 10'000;  // number of layers whose parameters are matched by name
constexpr size_t kLongestPattern = 100;
constexpr const char* kExcluded = "optimizer.weight_decay_exclude_named_params";

class Writer {
 public:
  Writer(const Config& config, PlanMessages& messages)
      : config_(config), lines_(config, messages) {}

  std::vector<compat::RunLine> write() {
    write_model();
    write_batch();
    write_optimizer();
    write_precision();
    add_schedule_lines(config_, lines_);
    count("model.ddp_bucket_cap_mb");
    lines_.integer("checkpoints.checkpoint_interval", "checkpoint.every");
    if (config_.is_given("general.seed")) lines_.integer("general.seed", "seed");
    write_data();
    if (config_.is_given("logging.iteration_step_info_interval"))
      lines_.integer("logging.iteration_step_info_interval", "metrics.every");
    return lines_.lines();
  }

 private:
  static std::string model(const char* name) { return concat("model.model_config.", name); }

  void write_model() {
    lines_.integer(model("num_hidden_layers"), "model.layers");
    lines_.integer(model("hidden_size"), "model.dim");
    lines_.integer(model("num_attention_heads"), "model.heads");
    const bool groups = config_.is_given(model("num_key_value_heads"));
    lines_.integer(model(groups ? "num_key_value_heads" : "num_attention_heads"), "model.kv_heads");
    lines_.integer(model("intermediate_size"), "model.ffn_dim");
    write_vocabulary();
    lines_.add(model("tie_word_embeddings"),
               "model.tied",
               compat::boolean_text(config_.boolean(model("tie_word_embeddings")) == true));
    lines_.number(model("rope_theta"), "model.rope_theta");
    lines_.number(model("rms_norm_eps"), "model.norm_eps");
    lines_.integer("tokens.sequence_length", "data.seq_len");
  }
  void write_data() {
    const char *folder = "data_stages[].data.dataset.dataset_folder",
               *weight = "data_stages[].data.dataset.dataset_weights";
    std::vector<std::string> folders = config_.words(folder);
    if (folders.empty()) return;
    for (std::string& name : folders) {
      if (name.starts_with('{'))
        return lines_.refuse(folder, "a list of folders", "write their weights as dataset_weights");
      name = quoted(name);
    }
    lines_.add(folder, "data.path", folders.size() == 1 ? folders[0] : "[" + join(folders) + "]");
    lines_.add(folder, "data.order", quoted("nanotron"));
    std::vector<std::string> weights;
    for (const std::string& text : config_.words(weight)) {
      const auto value = compat::parsed<double>(text);
      if (!value || !std::isfinite(*value) || *value <= 0)
        return lines_.refuse(weight, "numbers above 0", "each folder has one");
      weights.push_back(concat(*value));
    }
    if (weights.empty()) return;
    if (weights.size() != folders.size())
      return lines_.refuse(weight, concat(folders.size(), " weights"), "each folder has one");
    lines_.add(weight, "data.weights", "[" + join(weights) + "]");
  }
  // The softmax of nanotron runs over the padding of the vocabulary.
  void write_vocabulary() {
    const auto size = count(model("vocab_size"));
    const auto divisor = count("model.make_vocab_size_divisible_by");
    const auto degree = count("parallelism.tp");
    if (!size || !divisor || !degree) return;  // already reported
    const int64_t unit = *divisor * *degree;
    lines_.add(model("vocab_size"), "model.vocab", concat((*size + unit - 1) / unit * unit));
  }
  void write_batch() {
    lines_.integer("tokens.micro_batch_size", "train.micro_batch");
    int64_t batch = 1;
    for (const char* name :
         {"tokens.micro_batch_size", "tokens.batch_accumulation_per_replica", "parallelism.dp"}) {
      const auto factor = count(name);
      if (!factor) return;  // already reported
      batch *= *factor;
    }
    lines_.add("tokens.batch_accumulation_per_replica", "train.global_batch", concat(batch));
  }
  void write_optimizer() {
    const bool sgd = config_.word("optimizer.optimizer_factory.name") == "sgd";
    lines_.add(
        "optimizer.optimizer_factory.name", "train.optimizer", quoted(sgd ? "sgd" : "adamw"));
    if (!sgd) lines_.betas(config_.adam_key("adam_beta1"), config_.adam_key("adam_beta2"));
    if (!sgd) lines_.number(config_.adam_key("adam_eps"), "train.eps");
    if (sgd) lines_.add("optimizer.optimizer_factory.name", "train.momentum", "0");
    if (sgd && config_.number("optimizer.weight_decay") != 0.0)
      lines_.refuse(
          "optimizer.weight_decay", "0", "with sgd the decay of nanotron is not decoupled");
    lines_.number("optimizer.weight_decay", "train.weight_decay");
    write_decay();
    write_clip();
  }
  // Only null turns clipping off in nanotron.
  void write_clip() {
    const char* const key = "optimizer.clip_grad";
    const auto clip = config_.number(key);
    if (config_.is_given(key) && clip && *clip <= 0)
      return lines_.refuse(key,
                           "null, a number above 0",
                           "nanotron multiplies the gradients by 0 or less then; null does not "
                           "clip");
    lines_.number(key, "train.clip");
  }
  // Returns a number of things, which is refused if it is not from 1 to a million: the products of
  // three of them fit into 64 bits. std::nullopt: it was refused, or is missing.
  std::optional<int64_t> count(const std::string& name) {
    const auto value = config_.integer(name);
    if (!value || (*value >= 1 && *value <= 1'000'000)) return value;
    lines_.refuse(name, "1 to 1000000", "it is a number of things, of which there is at least one");
    return std::nullopt;
  }
  // The regular expressions may leave out nothing, or all norms and nothing else.
  void write_decay() {
    const std::vector<std::regex> patterns = excluding();
    const auto layers = count(model("num_hidden_layers"));
    if (!patterns.empty() && layers > kMostLayers) {
      lines_.refuse(model("num_hidden_layers"),
                    concat("1 to ", kMostLayers),
                    concat("with ", kExcluded, " the parameters of every layer are compared"));
      return;
    }
    bool any_norm = false, all_norms = true, any_other = false;
    for (const std::string& name : parameter_names(patterns.empty() ? std::nullopt : layers)) {
      const bool excluded = std::any_of(patterns.begin(), patterns.end(), [&](const auto& pattern) {
        return std::regex_search(name, pattern, std::regex_constants::match_continuous);
      });
      const bool is_norm = name.find("norm") != std::string::npos;
      any_norm |= is_norm && excluded;
      all_norms &= !is_norm || excluded;
      any_other |= !is_norm && excluded;
    }
    if (any_other || any_norm != all_norms)
      lines_.refuse(kExcluded, "unset, .*norm.*", "all parameters decay, or all but the norms");
    lines_.add(any_norm ? kExcluded : "optimizer.weight_decay",
               "train.decay",
               quoted(any_norm ? "matrices" : "all"));
  }
  std::vector<std::regex> excluding() {
    std::vector<std::regex> patterns;
    for (const std::string& pattern : config_.excluded()) {
      // std::regex takes exponential time for some patterns with groups.
      if (pattern.size() > kLongestPattern || pattern.find('(') != pattern.npos) {
        lines_.refuse(kExcluded,
                      concat("up to ", kLongestPattern, " characters without groups"),
                      concat("'", pattern.substr(0, kLongestPattern), "' is another pattern"));
        continue;
      }
      try {
        patterns.emplace_back(pattern);
      } catch (const std::regex_error&) {
        lines_.refuse(kExcluded, "regular expressions", concat("'", pattern, "' is none"));
      }
    }
    return patterns;
  }
  void write_precision() {
    const bool bf16 = config_.word("model.dtype") == "bfloat16";
    const bool fp64 = config_.word("model.dtype") == "float64";
    lines_.add("model.dtype", "precision.param", quoted(bf16 ? "bf16" : fp64 ? "fp64" : "fp32"));
    const char* const fp32_sums = "optimizer.accumulate_grad_in_fp32";
    const auto wide = config_.boolean(fp32_sums);
    if (wide == true && !bf16) {
      lines_.refuse(fp32_sums, "false", "it needs model.dtype bfloat16, as in nanotron");
    } else if (wide && bf16) {
      lines_.add(fp32_sums, "precision.reduce", quoted(*wide ? "fp32" : "bf16"));
      if (!*wide)
        lines_.note(fp32_sums,
                    "the parameters have fp32 copies and the moments are in fp32 here; nanotron "
                    "has neither with this value");
    }
  }

  const Config& config_;
  compat::RunLines lines_;
};

}  // namespace

std::vector<compat::RunLine> run_lines(const Config& config, PlanMessages& messages) {
  if (!config.has_file()) return {};
  return Writer(config, messages).write();
}

}  // namespace yoke::nanotron_compat
