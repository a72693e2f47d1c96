#include "plugins/deepspeed_stub/config/equivalents.hpp"

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

// If the file gives all three numbers of the batch rule, they determine the number of ranks.
void report_batch(const DsConfig& config, const YokePlan& plan, Equivalents& run_file) {
  const auto batch = config.integer("train_batch_size");
  const auto micro = config.integer("train_micro_batch_size_per_gpu");
  const auto steps = config.integer("gradient_accumulation_steps");
  const bool stage0 = config.integer("zero_optimization.stage").value_or(0) == 0;
  const auto possible = [](const std::optional<int64_t>& n) {
    return n && *n >= 1 && *n <= 1'000'000;
  };
  if (possible(batch) && possible(micro) && possible(steps) && *batch % (*micro * *steps) == 0) {
    run_file.report("gradient_accumulation_steps",
                    stage0 ? "dp_degree" : "dp_shards",
                    std::to_string(*batch / (*micro * *steps)));
  }
  if (micro) {
    run_file.report("train_micro_batch_size_per_gpu", "train.micro_batch", std::to_string(*micro));
  } else if (steps && plan.micro_batch > 0) {
    run_file.report(
        "gradient_accumulation_steps", "train.micro_batch", std::to_string(plan.micro_batch));
  }
}

}  // namespace

void report_equivalents(const DsConfig& config,
                        const YokePlan& plan,
                        const std::vector<HostKey>& host_keys,
                        PlanReport& report) {
  Equivalents run_file(config, report);
  const bool own_peak = !peak_key(config).empty();
  for (const auto& [path, key] : kSame) {
    const bool is_replaced = own_peak && key == std::string_view("train.lr");
    if (run_file.has(path) && !is_replaced) run_file.report(path, key, config.find(path)->dump());
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
    run_file.report(key.path,
                    "deepspeed_stub." + inline_name(key),
                    key.form == Form::kInt ? std::to_string(*config.integer(key.path))
                                           : config.find(key.path)->dump());
  }
}

}  // namespace yoke::deepspeed_stub
