#include "sdk/compat/flat_plan.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "sdk/mesh/schedule/degree_checks.hpp"
#include "yoke/optimizer_name.hpp"
#include "yoke/plan.h"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke::compat {

void resolve_model_degrees(const ForeignConfig& config,
                           std::span<const ModelDegree> degrees,
                           YokePlan& plan,
                           PlanMessages& messages) {
  int64_t product = 1;
  const ModelDegree* largest = &degrees.front();
  for (const ModelDegree& d : degrees) {
    int32_t& degree = plan.degree[d.axis];
    const int64_t wanted = config.integer(d.setting).value_or(1);
    if (wanted < 1 || wanted > plan.world_size) {
      messages.push_back({config.label(d.setting),
                          config.shown(d.setting),
                          plan.world_size == 1 ? "1" : concat("1 to ", plan.world_size),
                          concat("the run has ", plan.world_size, " rank(s)")});
    } else if (degree == 0) {
      degree = static_cast<int32_t>(wanted);
    } else if (config.is_given(d.setting) && wanted != degree) {
      messages.push_back({config.label(d.setting),
                          config.shown(d.setting),
                          concat(degree),
                          concat("the run has ", yoke_degree_key(d.axis), " = ", degree)});
    }
    degree = std::max(degree, 1);
    product *= degree;
    if (degree > plan.degree[largest->axis]) largest = &d;
  }
  if (plan.world_size % product == 0) return;
  messages.push_back({yoke_degree_key(largest->axis),
                      concat(plan.degree[largest->axis]),
                      concat("degrees whose product divides the ", plan.world_size, " ranks"),
                      concat("pp_degree x cp_degree x tp_degree is ", product)});
  for (const ModelDegree& d : degrees) plan.degree[d.axis] = 1;  // the checks that follow go on
}

int32_t copies_of_part(const YokePlan& plan) {
  return plan.world_size / (plan.degree[YOKE_PP] * plan.degree[YOKE_TP]);
}

int32_t data_ranks(const YokePlan& plan) {
  return copies_of_part(plan) / plan.degree[YOKE_CP];
}

std::string model_degrees_text(const YokePlan& plan) {
  std::string text;
  for (const auto& [axis, name] :
       {std::pair(YOKE_PP, "pp "), std::pair(YOKE_CP, "cp "), std::pair(YOKE_TP, "tp ")}) {
    if (plan.degree[axis] > 1) text += concat(name, plan.degree[axis], ", ");
  }
  return text;
}

void resolve_data_degrees(int32_t replicas,
                          std::string_view hint,
                          YokePlan& plan,
                          PlanMessages& messages) {
  const int32_t ranks = data_ranks(plan);
  const std::pair<int, int32_t> data[] = {{YOKE_DP_REPLICATE, replicas},
                                          {YOKE_DP_SHARD, ranks / replicas}};
  for (const auto& [axis, only] : data) {
    int32_t& degree = plan.degree[axis];
    if (degree == 0) degree = only;
    if (degree != only)
      messages.push_back({yoke_degree_key(axis),
                          concat(degree),
                          concat(only),
                          concat("the run has ", ranks, " data rank(s), and ", hint)});
  }
}

void check_pipeline(const YokeModelSummary& model,
                    const mesh::Pipeline& pipeline,
                    YokePlan& plan,
                    PlanMessages& messages) {
  const int pp = plan.degree[YOKE_PP];
  if (pp == 1 || pipeline.stages.count() == 0) return;
  if (plan.micro_batch == 0) plan.micro_batch = 1;
  const auto micros = static_cast<int>(mesh::micros_of(plan));
  const std::string fault = micros == 0 ? "" : mesh::micros_fault(pipeline.kind, pp, micros);
  if (!fault.empty())
    messages.push_back({"train.micro_batch",
                        concat(plan.micro_batch),
                        "",
                        concat(fault,
                               "; this run has ",
                               micros,
                               " (train.global_batch / data ranks / train.micro_batch)")});
  const auto [param, ranks] = mesh::most_shared_parameter(model, pipeline.stages);
  if (ranks > 2)
    messages.push_back(
        {"pp_degree",
         concat(pp),
         "2",
         concat(
             "blocks on ", ranks, " ranks use parameter '", view(model.params[param]->name), "'")});
}

void check_model(const YokeModelSummary& model,
                 bool sequence_parallel,
                 std::string_view without_sequence_parallel,
                 const YokePlan& plan,
                 PlanReport& report) {
  mesh::check_tensor_parallel(model, plan, report);
  mesh::check_sequence(model,
                       plan,
                       {.head_tail = true,
                        .sequence_parallel = sequence_parallel,
                        .one_part_hint = "",
                        .whole_sequence_hint = std::string(without_sequence_parallel)},
                       report);
  report.refuse_unused_params(model, "no block would report its gradient");
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

void check_reduction(const ForeignConfig& config,
                     std::string_view setting,
                     int32_t wanted,
                     std::string_view allowed,
                     const YokePlan& plan,
                     PlanMessages& messages) {
  if (plan.param_dtype != YOKE_BF16 || plan.reduce_dtype == wanted) return;
  messages.push_back({config.label(setting),
                      config.shown(setting),
                      std::string(allowed),
                      concat("the run has precision.reduce = \"",
                             dtype_name(plan.reduce_dtype),
                             "\"; change one of them")});
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
