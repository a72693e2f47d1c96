#include "core/run/record_file.hpp"

#include <nlohmann/json.hpp>

#include "core/base/files.hpp"
#include "yoke/muon.h"
#include "yoke/tensor.hpp"

namespace yoke {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const YokeWrapResult& costs) {
  Json axes;
  for (int axis = 0; axis < YOKE_NUM_AXES; ++axis)
    axes[std::string(Degrees::kAxes[axis])] = costs.axis_bytes[axis];
  return {{"param", costs.param_bytes},
          {"grad", costs.grad_bytes},
          {"optimizer", costs.optimizer_bytes},
          {"unsharded", costs.unsharded_bytes},
          {"activation", costs.activation_bytes},
          {"axes", axes}};
}

Json to_json(const std::vector<OperationCount>& traffic) {
  Json list = Json::array();
  for (const OperationCount& t : traffic) {
    list.push_back({t.axes, t.operation, t.dtype, t.count.calls, t.count.bytes, t.count.seconds});
  }
  return list;
}

void add(const StepReport& report, Json& line) {
  line["hashes"] = report.param_hashes;
  line["violation"] = nullptr;
  if (const auto& violation = report.violation) {
    line["violation"] = {{"kind", violation->kind},
                         {"rank", violation->rank},
                         {"tensor", violation->tensor},
                         {"text", violation->text}};
  }
  Json ranks = Json::array();
  for (const RankReport& rank : report.ranks) {
    Json losses = Json::array();
    for (const ObservedLoss& l : rank.losses) losses.push_back({l.sum, l.weight, l.scale});
    ranks.push_back({{"assigned", rank.assigned}, {"received", rank.received}, {"losses", losses}});
  }
  line["ranks"] = ranks;
}

// Returns the decay rate of the moment "exp_avg", null if the optimizer has no such moment.
Json exp_avg_decay(const YokeOptimizer& optimizer) {
  if (yoke_is_adam(optimizer.kind) || yoke_is_muon(optimizer.kind)) return optimizer.beta1;
  if (yoke_is_lion(optimizer.kind)) return optimizer.beta2;
  return nullptr;
}

// Returns the decay rates of the parameters that have another one, by their names.
Json other_decays(const YokeOptimizer& optimizer, const YokeModelSummary& model) {
  Json decays = Json::object();
  for (uint64_t i = 0; i < model.num_params; ++i) {
    if (yoke_updates_matrix(&optimizer, &model, static_cast<int64_t>(i)))
      decays[std::string(view(model.params[i]->name))] = optimizer.momentum;
  }
  return decays;
}

// Returns whose rule the update follows: "contract" or, if the backend declares its own, "own" or
// "local" for ranks that update by themselves and are averaged from time to time.
const char* update_of(const Job& job) {
  const uint32_t traits = traits_of(job.backend, *job.inner);
  if ((traits & YOKE_LOCAL_UPDATES) != 0) return "local";
  return (traits & YOKE_OWN_UPDATE) != 0 ? "own" : "contract";
}

Json describe(const Job& job, const YokeModelSummary& model) {
  const YokePlan& plan = job.plan->plan();
  Json degrees, params = Json::array();
  for (int axis = 0; axis < YOKE_NUM_AXES; ++axis)
    degrees[std::string(Degrees::kKeys[axis])] = plan.degree[axis];
  for (uint64_t i = 0; i < model.num_params; ++i) params.push_back(view(model.params[i]->name));
  return {{"backend", job.backend.name()},
          {"version", view(job.backend.description().version)},
          {"data_ranks", job.plan->data_ranks()},
          {"accumulation", job.plan->accumulation()},
          {"degrees", degrees},
          {"blocks", model.num_blocks},
          {"parameters", job.model.num_params},
          {"params", params},
          {"clip", plan.optimizer->clip},
          {"exp_avg_decay", exp_avg_decay(*plan.optimizer)},
          {"other_decays", other_decays(*plan.optimizer, model)},
          {"dtype", dtype_name(plan.param_dtype)},
          {"product", job.config.run.precision.product},
          {"update", update_of(job)}};
}

}  // namespace

struct RecordFile::Impl {
  File file;
  uint64_t size = 0;

  void write(const Json& line) {
    const std::string text = line.dump() + "\n";
    file.write_at(text.data(), text.size(), size);
    size += text.size();
  }
};

RecordFile::RecordFile(const std::string& path,
                       const Job& job,
                       const YokeModelSummary& model,
                       const YokeWrapResult& costs) {
  replace_text(path, "");
  impl_ = std::make_unique<Impl>(Impl{File::open_for_writing(path)});
  Json run = describe(job, model);
  run["costs"] = to_json(costs);
  impl_->write({{"run", run}});
}

RecordFile::~RecordFile() = default;

void RecordFile::start(const StepReport& report) {
  Json line = {{"step", 0}};
  add(report, line);
  impl_->write(line);
}

void RecordFile::step(int64_t step,
                      const YokeStepResult& result,
                      const std::vector<OperationCount>& traffic,
                      const StepReport& report) {
  Json line = {{"step", step},
               {"loss", result.loss_sum / result.loss_weight},
               {"grad_norm", result.grad_norm},
               {"weight", result.loss_weight},
               {"traffic", to_json(traffic)}};
  add(report, line);
  impl_->write(line);
}

}  // namespace yoke
