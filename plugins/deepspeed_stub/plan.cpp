#include "plugins/deepspeed_stub/plan.hpp"

#include <algorithm>
#include <cctype>
#include <string>

#include "plugins/deepspeed_stub/config/batch.hpp"
#include "plugins/deepspeed_stub/config/ds_config.hpp"
#include "plugins/deepspeed_stub/config/equivalents.hpp"
#include "plugins/deepspeed_stub/config/settings.hpp"
#include "yoke/tensor.hpp"

namespace yoke::deepspeed_stub {
namespace {

constexpr const char* kDegreeKeys[YOKE_NUM_AXES] = {
    "pp_degree", "dp_degree", "dp_shards", "cp_degree", "tp_degree"};

using Findings = std::vector<Finding>;

// All ranks are data ranks: on one axis, chosen by the stage.
void settle_degrees(int64_t stage, YokePlan& plan, Findings& findings) {
  for (int axis = 0; axis < YOKE_NUM_AXES; ++axis) {
    const int32_t only = axis == data_axis(stage) ? plan.world_size : 1;
    int32_t& degree = plan.degree[axis];
    if (degree == 0) degree = only;
    if (degree == only) continue;
    const bool data = axis == YOKE_DP_REPLICATE || axis == YOKE_DP_SHARD;
    findings.push_back({kDegreeKeys[axis],
                        std::to_string(degree),
                        std::to_string(only),
                        data ? "ZeRO stage " + std::to_string(stage) + " makes all " +
                                   std::to_string(plan.world_size) + " rank(s) data ranks of " +
                                   kDegreeKeys[data_axis(stage)] + "; leave the degrees unset"
                             : "only data parallelism is built here"});
  }
}

void settle_precision(YokePlan& plan, Findings& findings) {
  if (plan.param_dtype == 0) plan.param_dtype = YOKE_F32;
  const int32_t param = plan.param_dtype;
  if (plan.reduce_dtype == 0) plan.reduce_dtype = param == YOKE_BF16 ? YOKE_F32 : param;
  const int32_t reduce = plan.reduce_dtype;
  if (param != YOKE_F32 && param != YOKE_F64 && param != YOKE_BF16) {
    findings.push_back(
        {"precision.param", dtype_name(param), "fp32, fp64, bf16", "other types are not built"});
  } else if (reduce != param && !(param == YOKE_BF16 && reduce == YOKE_F32)) {
    findings.push_back({"precision.reduce",
                        dtype_name(reduce),
                        param == YOKE_BF16 ? "fp32, bf16" : dtype_name(param),
                        "gradients are kept in the type in which they are reduced"});
  }
}

// ---- Keys that the run file decides

// The ds_config may repeat what the run file says, not change it.
class Agreement {
 public:
  Agreement(const DsConfig& config, Findings& findings) : config_(config), findings_(findings) {}

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
  // A switch that is on if the run has this dtype.
  void flag(const char* path, const char* key, bool on, int32_t run) {
    const auto value = config_.boolean(path);
    if (value && *value != on) refuse(path, on, key, dtype_name(run));
  }

 private:
  void refuse(const char* path,
              const nlohmann::json& allowed,
              const char* key,
              const nlohmann::json& run) {
    findings_.push_back({config_.label(path),
                         config_.shown(path),
                         allowed.dump() + " or \"auto\"",
                         std::string("the run has ") + key + " = " + run.dump() +
                             "; change one of them: the run file decides what all backends share"});
  }

  const DsConfig& config_;
  Findings& findings_;
};

void check_optimizer_type(const DsConfig& config, const YokePlan& plan, Findings& findings) {
  if (plan.optimizer->kind != YOKE_ADAMW) {
    findings.push_back({"train.optimizer",
                        plan.optimizer->kind == YOKE_SGD ? "sgd" : "unknown",
                        "adamw",
                        "AdamW is the only optimizer that is built here"});
  }
  std::string type = config.string("optimizer.type").value_or("adamw");
  std::transform(
      type.begin(), type.end(), type.begin(), [](unsigned char c) { return std::tolower(c); });
  if (type == "adam" || type == "adamw") return;
  findings.push_back({config.label("optimizer.type"),
                      config.shown("optimizer.type"),
                      "\"AdamW\", \"Adam\"",
                      "no other optimizer of DeepSpeed is built here"});
}

void check_agreement(const DsConfig& config, const YokePlan& plan, Findings& findings) {
  const YokeOptimizer& o = *plan.optimizer;
  check_optimizer_type(config, plan, findings);
  Agreement run(config, findings);
  run.number("gradient_clipping", "train.clip", o.clip);
  if (o.lr != 0) run.number("optimizer.params.lr", "train.lr", o.lr);
  run.numbers("optimizer.params.betas", "train.betas", {o.beta1, o.beta2});
  run.number("optimizer.params.eps", "train.eps", o.eps);
  run.number("optimizer.params.weight_decay", "train.weight_decay", o.weight_decay);
  for (const char* path : {"bf16.enabled", "bfloat16.enabled"})
    run.flag(path, "precision.param", plan.param_dtype == YOKE_BF16, plan.param_dtype);
  for (const char* path : {"communication_data_type", "data_types.grad_accum_dtype"})
    run.dtype(path, "precision.reduce", plan.reduce_dtype);
}

void check_model(const YokeModelSummary& model, Findings& findings) {
  std::vector<bool> used(model.num_params, false);
  for (uint64_t b = 0; b < model.num_blocks; ++b) {
    const YokeBlock& block = *model.blocks[b];
    for (uint64_t i = 0; i < block.num_params; ++i) used[block.params[i]] = true;
  }
  for (uint64_t p = 0; p < model.num_params; ++p) {
    if (used[p]) continue;
    findings.push_back({"model",
                        "parameter '" + std::string(view(model.params[p]->name)) + "' in no block",
                        "every parameter in at least one block",
                        "its gradient would never come"});
  }
}

}  // namespace

int data_axis(int64_t zero_stage) {
  return zero_stage == 0 ? YOKE_DP_REPLICATE : YOKE_DP_SHARD;
}

void complete_plan(const YokePlanArgs& args, YokePlan& plan, PlanReport& refusals) {
  const DsConfig config(Options(args.options, args.num_options));
  Findings findings = config.findings();
  const Settings settings = read_settings(config, findings);
  settle_degrees(settings.stage, plan, findings);
  settle_precision(plan, findings);
  check_agreement(config, plan, findings);
  settle_batch(config, plan, findings);
  check_model(*args.model, findings);
  tell_equivalents(config, plan, refusals);
  for (const Finding& f : findings) {
    if (f.note) {
      refusals.note(f.key, f.given, f.hint);
    } else {
      refusals.refuse(f.key, f.given, f.allowed, f.hint);
    }
  }
}

Settings settings_of(const YokeInitArgs& args) {
  std::vector<Finding> findings;  // the plan has told them
  return read_settings(DsConfig(Options(args.options, args.num_options)), findings);
}

}  // namespace yoke::deepspeed_stub
