#include "sdk/compat/flat_plan.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "yoke/optimizer_name.hpp"
#include "yoke/plan.h"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke::compat {

void refuse_model_degrees(const ForeignConfig& config,
                          std::span<const ModelDegree> degrees,
                          std::string_view backend,
                          std::string_view instead,
                          YokePlan& plan,
                          PlanMessages& messages) {
  for (const ModelDegree& d : degrees) {
    int32_t& degree = plan.degree[d.axis];
    const int64_t wanted = config.integer(d.setting).value_or(1);
    if (degree == 0) degree = 1;
    const std::string key = yoke_degree_key(d.axis);
    const std::string hint = concat(backend,
                                    " has no ",
                                    d.what,
                                    "; use parallel_backend = \"",
                                    instead,
                                    "\" with ",
                                    key,
                                    " = ",
                                    degree > 1 ? degree : wanted);
    if (degree > 1) messages.push_back({key, concat(degree), "1", hint});
    if (config.is_given(d.setting) && wanted != degree)
      messages.push_back({config.label(d.setting),
                          config.shown(d.setting),
                          concat(degree),
                          degree > 1 ? concat("the run has ", key, " = ", degree) : hint});
  }
}

bool is_model_parallel(const ForeignConfig& config, std::span<const ModelDegree> degrees) {
  return std::any_of(degrees.begin(), degrees.end(), [&](const ModelDegree& d) {
    return config.integer(d.setting).value_or(1) > 1;
  });
}

void resolve_data_degrees(int32_t replicas,
                          std::string_view hint,
                          YokePlan& plan,
                          PlanMessages& messages) {
  const std::pair<int, int32_t> data[] = {{YOKE_DP_REPLICATE, replicas},
                                          {YOKE_DP_SHARD, plan.world_size / replicas}};
  for (const auto& [axis, only] : data) {
    int32_t& degree = plan.degree[axis];
    if (degree == 0) degree = only;
    if (degree != only)
      messages.push_back({yoke_degree_key(axis),
                          concat(degree),
                          concat(only),
                          concat("the run has ", plan.world_size, " rank(s), and ", hint)});
  }
}

void resolve_precision(bool narrow_sums, YokePlan& plan, PlanMessages& messages) {
  if (plan.param_dtype == 0) plan.param_dtype = YOKE_F32;
  const int32_t param = plan.param_dtype;
  if (plan.reduce_dtype == 0)
    plan.reduce_dtype =
        param == YOKE_BF16 && narrow_sums ? YOKE_BF16 : yoke_default_reduce_dtype(param);
  const int32_t reduce = plan.reduce_dtype;
  if (param != YOKE_F32 && param != YOKE_F64 && param != YOKE_BF16) {
    messages.push_back(
        {"precision.param", dtype_name(param), "fp32, fp64, bf16", "no other dtype is supported"});
  } else if (reduce != param && !(param == YOKE_BF16 && reduce == YOKE_F32)) {
    messages.push_back({"precision.reduce",
                        dtype_name(reduce),
                        param == YOKE_BF16 ? "fp32, bf16" : dtype_name(param),
                        "gradients are kept in the dtype in which they are reduced"});
  }
}

void check_optimizer(const YokePlan& plan, std::string_view hint, PlanMessages& messages) {
  if (plan.optimizer->kind == YOKE_ADAMW || plan.optimizer->kind == YOKE_SGD) return;
  messages.push_back(
      {"train.optimizer", optimizer_name(plan.optimizer->kind), "adamw, sgd", std::string(hint)});
}

void report_line(const ForeignConfig& config, const RunLine& line, PlanReport& report) {
  report.equivalent(
      config.label(line.setting), config.shown(line.setting), concat(line.key, " = ", line.value));
}

}  // namespace yoke::compat
