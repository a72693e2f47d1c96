// The tables repeat the parameters and defaults of DeepSpeed's classes. A parameter that DeepSpeed
// leaves out is written to the run file as well, because the defaults of the host are others.
#include "plugins/deepspeed_stub/config/scheduler.hpp"

#include <algorithm>

#include "plugins/deepspeed_stub/config/auto_values.hpp"
#include "plugins/deepspeed_stub/config/optimizer_type.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke::deepspeed_stub {
namespace {

using Json = nlohmann::json;

struct Param {
  const char* name;       // name in scheduler.params
  const char* key;        // key of the run file
  const char* otherwise;  // DeepSpeed's default as JSON; "" = DeepSpeed requires the parameter
};

struct Scheduler {
  const char* name;  // the same in a run file
  // The parameters. A rate that becomes lr_schedule.start_factor is a fraction of train.lr there.
  std::vector<Param> params;
};

const std::vector<Scheduler>& schedulers() {
  static const Param kSteps{"warmup_num_steps", "train.warmup", "1000"};
  static const Param kShape{"warmup_type", "lr_schedule.warmup_shape", "\"log\""};
  static const Param kTotal{"total_num_steps", "lr_schedule.total_steps", ""};
  static const Param kPeak{"warmup_max_lr", "train.lr", "null"};
  static const Param kDecayPeak{"warmup_max_lr", "train.lr", "0.001"};
  static const Param kLow{"warmup_min_lr", "lr_schedule.start_factor", "0.0"};
  static const std::vector<Scheduler> all{
      {"WarmupLR", {kSteps, kShape, kPeak, kLow}},
      {"WarmupDecayLR", {kSteps, kShape, kDecayPeak, kLow, kTotal}},
      {"WarmupCosineLR",
       {kSteps,
        kShape,
        kTotal,
        {"warmup_min_ratio", "lr_schedule.start_factor", "0.0"},
        {"cos_min_ratio", "train.min_lr_factor", "0.0001"}}},
      {"OneCycle",
       {{"cycle_max_lr", "train.lr", ""},
        {"cycle_min_lr", "lr_schedule.start_factor", ""},
        {"cycle_first_step_size", "lr_schedule.rise_steps", "2000"},
        {"cycle_second_step_size", "lr_schedule.fall_steps", "null"},
        {"cycle_first_stair_count", "lr_schedule.rise_stairs", "0"},
        {"cycle_second_stair_count", "lr_schedule.fall_stairs", "null"},
        {"decay_step_size", "lr_schedule.tail_steps", "0"},
        {"decay_lr_rate", "lr_schedule.tail_rate", "0.0"}}},
      {"LRRangeTest",
       {{"lr_range_test_min_lr", "train.lr", "0.001"},
        {"lr_range_test_step_size", "lr_schedule.range_steps", "2000"},
        {"lr_range_test_step_rate", "lr_schedule.range_rate", "1.0"},
        {"lr_range_test_staircase", "lr_schedule.staircase", "false"}}}};
  return all;
}

std::string path_of(std::string_view param) {
  return concat("scheduler.params.", param);
}

// Returns the value of a parameter, DeepSpeed's default if the file does not give it; null if that
// is unset, if the file leaves it to the run, or if DeepSpeed requires it.
Json value_of(const DsConfig& config, const Param& param) {
  const std::string path = path_of(param.name);
  if (const Json* given = config.find(path))
    return find_key(path)->form == Form::kInt ? Json(given->get<int64_t>()) : *given;
  const bool has_default = !config.is_auto(path) && param.otherwise[0] != '\0';
  return has_default ? Json::parse(param.otherwise) : Json();
}

// Returns NULL if the ds_config has no scheduler, or one that DeepSpeed does not have.
const Scheduler* scheduler_of(const DsConfig& config) {
  const auto type = config.string("scheduler.type");
  const auto& all = schedulers();
  const auto at = std::find_if(
      all.begin(), all.end(), [&](const Scheduler& s) { return type && *type == s.name; });
  return at == all.end() ? nullptr : &*at;
}

// Reads the parameters of one scheduler.
class Reader {
 public:
  Reader(const DsConfig& config, const Scheduler& scheduler, PlanMessages& messages)
      : config_(config), scheduler_(scheduler), messages_(messages) {}

  std::vector<HostKey> read(double lr) {
    refuse_other_params();
    add("scheduler.type", "train.schedule", scheduler_.name);
    for (const Param& param : scheduler_.params) add(param, lr);
    if (scheduler_.name == std::string_view("OneCycle")) refuse_momentum();
    return std::move(found_);
  }

 private:
  void add(const std::string& path, const std::string& key, Json value) {
    found_.push_back({path, key, std::move(value)});
  }
  void add(const Param& param, double lr) {
    const std::string path = path_of(param.name);
    Json value = value_of(config_, param);
    if (!value.is_null()) {
      if (const double peak = peak_rate(lr); is_rate(param) && peak > 0)
        value = value.get<double>() / peak;
      add(path, param.key, std::move(value));
    } else if (param.otherwise[0] == '\0' && !config_.is_auto(path)) {
      messages_.push_back({config_.label(path),
                           "unset",
                           concat("a value", or_auto(path)),
                           concat("DeepSpeed's ", scheduler_.name, " requires it")});
    }
  }
  // Returns train.lr of a run file that means the same: the peak of the scheduler, else the rate of
  // the optimizer, else that of the run.
  double peak_rate(double lr) const {
    constexpr const char* kOfOptimizer = "optimizer.params.lr";
    for (const Param& param : scheduler_.params) {
      if (param.key != std::string_view("train.lr")) continue;
      if (const Json value = value_of(config_, param); !value.is_null()) return value.get<double>();
    }
    if (uses_default(config_, kOfOptimizer))
      return std::stod(std::string(find_key(kOfOptimizer)->value));
    return config_.number(kOfOptimizer).value_or(lr);
  }
  // Returns true for a learning rate that is a fraction of train.lr in a run file.
  static bool is_rate(const Param& param) {
    return param.key == std::string_view("lr_schedule.start_factor") &&
           std::string_view(param.name).ends_with("_lr");
  }
  // DeepSpeed moves the first beta of Adam against the learning rate, unless the file says no.
  void refuse_momentum() {
    const std::string path = path_of("cycle_momentum");
    if (config_.boolean(path) == false) return;
    messages_.push_back({config_.label(path),
                         config_.shown(path),
                         "false",
                         "the betas of a run are constant; DeepSpeed's default is true"});
  }
  // DeepSpeed passes all parameters to the constructor, which accepts only its own.
  void refuse_other_params() {
    const std::string all = path_of("");
    for (const Key& key : keys()) {
      if (key.handling != Handling::kRun || !key.path.starts_with(all)) continue;
      const std::string_view name = key.path.substr(all.size());
      if (config_.find(key.path) == nullptr || is_own(name)) continue;
      messages_.push_back({config_.label(key.path),
                           config_.shown(key.path),
                           "unset",
                           concat("DeepSpeed's ", scheduler_.name, " has no such parameter")});
    }
  }
  bool is_own(std::string_view name) const {
    if (name == "cycle_momentum") return scheduler_.name == std::string_view("OneCycle");
    return std::any_of(scheduler_.params.begin(), scheduler_.params.end(), [&](const Param& param) {
      return name == param.name;
    });
  }

  const DsConfig& config_;
  const Scheduler& scheduler_;
  PlanMessages& messages_;
  std::vector<HostKey> found_;
};

}  // namespace

std::vector<HostKey> scheduler_keys(const DsConfig& config, double lr, PlanMessages& messages) {
  const auto type = config.string("scheduler.type");
  if (!type) return {};
  if (const Scheduler* scheduler = scheduler_of(config))
    return Reader(config, *scheduler, messages).read(lr);
  std::vector<std::string> names;
  for (const Scheduler& scheduler : schedulers()) names.emplace_back(scheduler.name);
  messages.push_back({config.label("scheduler.type"),
                      config.shown("scheduler.type"),
                      join(names),
                      "DeepSpeed has no such scheduler" + did_you_mean(*type, names)});
  return {};
}

std::string peak_key(const DsConfig& config) {
  const Scheduler* scheduler = scheduler_of(config);
  if (scheduler == nullptr) return "";
  for (const Param& param : scheduler->params) {
    if (param.key == std::string_view("train.lr") && !value_of(config, param).is_null())
      return path_of(param.name);
  }
  return "";
}

}  // namespace yoke::deepspeed_stub
