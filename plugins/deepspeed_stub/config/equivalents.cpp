#include "plugins/deepspeed_stub/config/equivalents.hpp"

#include "plugins/deepspeed_stub/config/auto_values.hpp"
#include "plugins/deepspeed_stub/config/loss_scale.hpp"
#include "plugins/deepspeed_stub/config/optimizer_type.hpp"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke::deepspeed_stub {
namespace {

// Keys whose values are written the same way in a run file.
constexpr const char* kSame[][2] = {{"train_batch_size", "train.global_batch"},
                                    {"gradient_clipping", "train.clip"},
                                    {"optimizer.params.lr", "train.lr"},
                                    {"optimizer.params.betas", "train.betas"},
                                    {"optimizer.params.eps", "train.eps"},
                                    {"optimizer.params.weight_decay", "train.weight_decay"},
                                    {"communication_data_type", "precision.reduce"},
                                    {"data_types.grad_accum_dtype", "precision.reduce"}};

// For each key in the ds_config file, reports the equivalent line of a run file.
class Equivalents {
 public:
  Equivalents(const DsConfig& config, PlanReport& report) : config_(config), report_(report) {}

  bool has(std::string_view path) const { return config_.is_in_file(path); }
  void report(std::string_view path, const std::string& key, const std::string& value) {
    if (has(path))
      report_.equivalent(config_.label(path), config_.shown(path), key + " = " + value);
  }

 private:
  const DsConfig& config_;
  PlanReport& report_;
};

// If the file gives all three numbers of the batch rule, they determine the number of ranks. If it
// leaves out the batch, the micro-batch and the number of ranks of the run determine that.
// DeepSpeed does not accumulate unless the file says so.
void report_batch(const DsConfig& config, const YokePlan& plan, Equivalents& run_file) {
  constexpr const char* kBatch = "train_batch_size";
  constexpr const char* kMicro = "train_micro_batch_size_per_gpu";
  constexpr const char* kSteps = "gradient_accumulation_steps";
  const auto batch = config.integer(kBatch), micro = config.integer(kMicro);
  const auto given_steps = config.integer(kSteps);
  const auto steps = given_steps || config.is_auto(kSteps) ? given_steps : 1;
  const bool stage0 = config.zero_stage() == 0;
  const auto possible = [](const std::optional<int64_t>& n) {
    return n && *n >= 1 && *n <= 1'000'000;
  };
  if (possible(batch) && possible(micro) && possible(given_steps) &&
      *batch % (*micro * *given_steps) == 0) {
    run_file.report(kSteps,
                    stage0 ? "dp_degree" : "dp_shards",
                    std::to_string(*batch / (*micro * *given_steps)));
  }
  if (!batch && possible(micro) && possible(steps))
    run_file.report(kMicro, "train.global_batch", concat(*micro * *steps * plan.world_size));
  if (micro) {
    run_file.report(kMicro, "train.micro_batch", std::to_string(*micro));
  } else if (steps == 1) {
    // A micro-batch is never too large, so that there is no accumulation on any number of ranks.
    run_file.report(given_steps ? kSteps : kBatch, "train.max_micro_batch", "1000000");
  } else if (steps && plan.micro_batch > 0) {
    run_file.report(kSteps, "train.micro_batch", std::to_string(plan.micro_batch));
  }
}

// Returns why a key of the file needs no line of a run file.
std::string explanation(const DsConfig& config, const DsConfig::Given& given) {
  const Key& key = *find_key(given.path);
  const std::string why(key.why);
  if (given.text == "null" || key.handling == Handling::kSection) return "the same as unset";
  if (config.is_auto(given.path) && auto_kind(given.path) == AutoKind::kRun)
    return concat("the run decides (", why, ")");
  if (key.handling == Handling::kNoEffect) return "no effect here: " + why;
  if (key.handling == Handling::kRefused) return "the only value that is supported: " + why;
  if (given.path == "optimizer.params.lr" && !peak_key(config).empty())
    return concat("no effect: ", peak_key(config), " sets the rate");
  if (given.path.starts_with("fp16.") && given.path != "fp16.enabled")
    return concat("no effect: it applies only in fp16",
                  given.path == "fp16.loss_scale" ? "" : " with a dynamic loss scale",
                  lacks_hysteresis(config, given.path) ? ", and not at ZeRO stage 0" : "");
  return concat("needs no line of its own (", why, ")");
}

}  // namespace

void explain_keys(const DsConfig& config, compat::NamedKeys& named) {
  for (const DsConfig::Given& given : config.given())
    named.explain(config.in_file(given.path), given.text, explanation(config, given));
}

void report_equivalents(const DsConfig& config,
                        const YokePlan& plan,
                        const std::vector<HostKey>& host_keys,
                        PlanReport& report) {
  Equivalents run_file(config, report);
  const bool own_peak = !peak_key(config).empty();
  for (const auto& [path, key] : kSame) {
    if (own_peak && key == std::string_view("train.lr")) continue;
    if (config.find(path) != nullptr) {
      run_file.report(path, key, config.find(path)->dump());
    } else if (uses_default(config, path)) {
      report.equivalent(
          config.label(path), "its default", concat(key, " = ", default_of(config, path)));
    }
  }
  for (const HostKey& k : host_keys) {
    const bool given = config.find(k.path) != nullptr;
    report.equivalent(config.label(k.path),
                      given ? config.shown(k.path) : "its default",
                      k.key + " = " + k.value.dump());
  }
  report_batch(config, plan, run_file);
  const OptimizerType type = optimizer_type(config);
  if (type.optimizer)
    run_file.report("optimizer.type", "train.optimizer", concat("\"", *type.optimizer, "\""));
  if (type.corrects)
    run_file.report("optimizer.params.bias_correction",
                    "train.bias_correction",
                    *type.corrects ? "true" : "false");
  const bool fp16 = config.boolean("fp16.enabled") == true;
  if (fp16) run_file.report("fp16.enabled", "precision.param", "\"fp16\"");
  for (const char* path : {"bf16.enabled", "bfloat16.enabled"}) {
    const bool bf16 = config.boolean(path) == true;
    if (run_file.has(path) && !fp16)
      run_file.report(path, "precision.param", bf16 ? "\"bf16\"" : "\"fp32\"");
  }
  report.equivalent(config.label("zero_optimization.stage"),
                    config.shown("zero_optimization.stage"),
                    "parallel_backend = \"deepspeed_stub\"");
  for (const Key& key : keys()) {
    if (key.handling != Handling::kHonoured || !run_file.has(key.path)) continue;
    if (*config.find(key.path) == "none") continue;  // the same as unset
    run_file.report(key.path,
                    "deepspeed_stub." + inline_name(key),
                    key.form == Form::kInt ? std::to_string(*config.integer(key.path))
                                           : config.find(key.path)->dump());
  }
}

}  // namespace yoke::deepspeed_stub
