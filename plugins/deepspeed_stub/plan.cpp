// Completes a plan from a run and a ds_config.
//
// The run file decides what all backends must agree on: global batch, learning rate, optimizer,
// clipping and precision. A ds_config may repeat these values but not change them, so a config with
// other values is refused with both values in the message, and never silently overrides the run.
// All refusals are collected and reported together, so that a user can fix a config in one go.
#include "plugins/deepspeed_stub/plan.hpp"

#include <string>

#include "plugins/deepspeed_stub/config/auto_values.hpp"
#include "plugins/deepspeed_stub/config/batch.hpp"
#include "plugins/deepspeed_stub/config/ds_config.hpp"
#include "plugins/deepspeed_stub/config/equivalents.hpp"
#include "plugins/deepspeed_stub/config/loss_scale.hpp"
#include "plugins/deepspeed_stub/config/optimizer_type.hpp"
#include "plugins/deepspeed_stub/config/settings.hpp"
#include "sdk/compat/reduction_hint.hpp"
#include "yoke/plan.h"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke::deepspeed_stub {
namespace {

// The keys that mean precision.reduce.
constexpr const char* kReductionKeys[] = {"communication_data_type", "data_types.grad_accum_dtype"};

// Describes a degree of data ranks that the stage excludes. If the file decides the stage and the
// run asks for the other axis, both contradict each other, and the message is about the file.
PlanMessage wrong_data_ranks(const DsConfig& config,
                             int64_t stage,
                             int axis,
                             const YokePlan& plan) {
  constexpr const char* kStage = "zero_optimization.stage";
  const std::string degree = std::to_string(plan.degree[axis]);
  const char* all = yoke_degree_key(data_axis(stage));
  const std::string rule =
      concat("at ZeRO stage ", stage, " all ", plan.world_size, " rank(s) belong to ", all);
  const bool is_inline = config.find(kStage) != nullptr && !config.is_in_file(kStage);
  if (axis == data_axis(stage) || is_inline || !config.has_file()) {
    const int32_t only = axis == data_axis(stage) ? plan.world_size : 1;
    return {yoke_degree_key(axis), degree, concat(only), rule + "; leave the degrees unset"};
  }
  return {config.label(kStage),
          config.shown(kStage),
          stage == 0 ? "1, 2, 3" : "0",
          concat("the run has ", yoke_degree_key(axis), " = ", degree, ", but ", rule)};
}

// All ranks are data ranks. The stage decides which axis they form; all other degrees are 1.
void resolve_degrees(const DsConfig& config,
                     int64_t stage,
                     YokePlan& plan,
                     PlanMessages& messages) {
  for (int axis = 0; axis < YOKE_NUM_AXES; ++axis) {
    const int32_t only = axis == data_axis(stage) ? plan.world_size : 1;
    int32_t& degree = plan.degree[axis];
    if (degree == 0) degree = only;
    if (degree == only) continue;
    if (axis == YOKE_DP_REPLICATE || axis == YOKE_DP_SHARD) {
      messages.push_back(wrong_data_ranks(config, stage, axis, plan));
    } else {
      messages.push_back({yoke_degree_key(axis),
                          std::to_string(degree),
                          "1",
                          "deepspeed_stub has only data parallelism"});
    }
  }
}

void resolve_precision(YokePlan& plan, PlanMessages& messages) {
  if (plan.param_dtype == 0) plan.param_dtype = YOKE_F32;
  const int32_t param = plan.param_dtype;
  if (plan.reduce_dtype == 0) plan.reduce_dtype = yoke_default_reduce_dtype(param);
  const int32_t reduce = plan.reduce_dtype;
  const bool narrow = param == YOKE_BF16 || param == YOKE_F16;
  if (param != YOKE_F32 && param != YOKE_F64 && !narrow) {
    messages.push_back({"precision.param",
                        dtype_name(param),
                        "fp32, fp64, bf16, fp16",
                        "no other dtype is supported"});
  } else if (reduce != param && !(narrow && reduce == YOKE_F32)) {
    messages.push_back({"precision.reduce",
                        dtype_name(reduce),
                        narrow ? concat("fp32, ", dtype_name(param)) : dtype_name(param),
                        "gradients are kept in the dtype in which they are reduced"});
  }
}

// Returns whether DeepSpeed trains in this dtype of 16 bits with the file.
bool selects(const DsConfig& config, int32_t dtype) {
  const auto on = [&](const char* path) {
    return config.boolean(path) == true || config.is_auto(path);
  };
  if (dtype == YOKE_F16) return on("fp16.enabled");
  return dtype == YOKE_BF16 && (on("bf16.enabled") || on("bfloat16.enabled"));
}

// DeepSpeed reduces in the dtype of the parameters by default. A note reports the difference,
// unless the file gives a dtype, with which the run must agree.
void note_reduction(const DsConfig& config, const YokePlan& plan, PlanMessages& messages) {
  if (!selects(config, plan.param_dtype) || plan.reduce_dtype != YOKE_F32) return;
  for (const char* path : kReductionKeys) {
    if (config.find(path) != nullptr) return;
  }
  messages.push_back({config.label(kReductionKeys[0]),
                      config.shown(kReductionKeys[0]),
                      "",
                      compat::reduction_hint("DeepSpeed", plan.param_dtype),
                      true});
}

// ---- Keys that the run file decides ----

// Compares values of the ds_config with those of the run, and refuses the ones that differ. A key
// that the ds_config leaves unset agrees with any value. path: key of the ds_config; key: key of
// the run file.
class Agreement {
 public:
  Agreement(const DsConfig& config, PlanMessages& messages)
      : config_(config), messages_(messages) {}

  void number(const char* path, const char* key, double run) {
    const auto value = config_.number(path);
    if (value && *value != run) refuse(path, nlohmann::json(run), key, nlohmann::json(run));
  }
  void numbers(const char* path, const char* key, const std::vector<double>& run) {
    const nlohmann::json* value = config_.find(path);
    if (value != nullptr && *value != nlohmann::json(run)) refuse(path, run, key, run);
  }
  void dtype(const char* path, const char* key, int32_t run) {
    const auto value = config_.string(path);
    if (value && *value != dtype_name(run)) refuse(path, dtype_name(run), key, dtype_name(run));
  }
  // Compares a switch that selects a dtype, such as bf16.enabled. on: whether the run has that
  // dtype; run: the dtype of the run.
  void flag(const char* path, const char* key, bool on, int32_t run) {
    const auto value = config_.boolean(path);
    if (value && *value != on) refuse(path, on, key, dtype_name(run));
  }

 private:
  void refuse(const char* path,
              const nlohmann::json& allowed,
              const char* key,
              const nlohmann::json& run) {
    messages_.push_back({config_.label(path),
                         config_.shown(path),
                         allowed.dump() + or_auto(path),
                         concat("the run has ",
                                key,
                                " = ",
                                run.dump(),
                                "; change one of them: the run file decides what all backends "
                                "share")});
  }

  const DsConfig& config_;
  PlanMessages& messages_;
};

void check_agreement(const DsConfig& config, const YokePlan& plan, PlanMessages& messages) {
  const YokeOptimizer& o = *plan.optimizer;
  check_optimizer(config, o, messages);
  Agreement run(config, messages);
  run.number("gradient_clipping", "train.clip", o.clip);
  const std::string peak = peak_key(config);
  if (o.lr != 0) run.number(peak.empty() ? "optimizer.params.lr" : peak.c_str(), "train.lr", o.lr);
  run.numbers("optimizer.params.betas", "train.betas", {o.beta1, o.beta2});
  run.number("optimizer.params.eps", "train.eps", o.eps);
  run.number("optimizer.params.weight_decay", "train.weight_decay", o.weight_decay);
  for (const char* path : {"bf16.enabled", "bfloat16.enabled"})
    run.flag(path, "precision.param", plan.param_dtype == YOKE_BF16, plan.param_dtype);
  run.flag("fp16.enabled", "precision.param", plan.param_dtype == YOKE_F16, plan.param_dtype);
  for (const char* path : kReductionKeys) run.dtype(path, "precision.reduce", plan.reduce_dtype);
}

// Makes the plan and returns the ds_config.
DsConfig plan_config(const YokePlanArgs& args, YokePlan& plan, PlanReport& report) {
  PlanMessages messages;
  resolve_precision(plan, messages);
  DsConfig config(Options(args.options, args.num_options));
  config.fill_sizes(hidden_size(*args.model, plan.param_dtype));
  messages.insert(messages.end(), config.messages().begin(), config.messages().end());
  const Settings settings = read_settings(config, messages);
  check_buffers(config, settings.offload, plan, messages);
  resolve_degrees(config, settings.stage, plan, messages);
  check_agreement(config, plan, messages);
  note_reduction(config, plan, messages);
  resolve_batch(config, plan, messages);
  std::vector<HostKey> host_keys = scheduler_keys(config, plan.optimizer->lr, messages);
  const std::vector<HostKey> loss_scale = loss_scale_keys(config, plan.param_dtype);
  note_hysteresis(config, loss_scale, messages);
  host_keys.insert(host_keys.end(), loss_scale.begin(), loss_scale.end());
  report_equivalents(config, plan, host_keys, report);
  report.add(messages);
  report.refuse_unused_params(*args.model, "no block would report its gradient");
  return config;
}

}  // namespace

int data_axis(int64_t zero_stage) {
  return zero_stage == 0 ? YOKE_DP_REPLICATE : YOKE_DP_SHARD;
}

void complete_plan(const YokePlanArgs& args, YokePlan& plan, PlanReport& report) {
  compat::NamedKeys named(args);
  PlanReport recorded(named.args());
  const DsConfig config = plan_config(named.args(), plan, recorded);
  report.add(recorded.count());
  explain_keys(config, named);
}

Settings settings_of(DsConfig config, const YokeModelSummary& model, const YokePlan& plan) {
  PlanMessages messages;  // already reported when the plan was made
  config.fill_sizes(hidden_size(model, plan.param_dtype));
  return read_settings(config, messages);
}

}  // namespace yoke::deepspeed_stub
