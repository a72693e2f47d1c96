// The plan of a job: the backend fills it in and may refuse it, the host checks the result.
#include <algorithm>

#include "core/base/exit_code.hpp"
#include "core/run/job_draft.hpp"
#include "core/run/other_config.hpp"
#include "yoke/muon.h"
#include "yoke/nearest.hpp"
#include "yoke/plan.hpp"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"
#include "yoke/torch.hpp"

namespace yoke {
namespace {

// Returns whether the backend, or one that it has opened, was built with this program's LibTorch.
bool uses_torch(const LoadedBackend& backend, const InnerBackends& inner) {
  const auto same = [](const LoadedBackend& b) {
    return view(b.description().torch_tag) == kTorchTag;
  };
  const auto opened = inner.opened();
  return same(backend) || std::any_of(opened.begin(), opened.end(), [&](const auto* other) {
           return same(other->backend);
         });
}

std::unique_ptr<TorchModelHost> host_model(const RunConfig& run,
                                           BlockList blocks,
                                           int32_t param_dtype,
                                           at::Device device) {
  return std::make_unique<TorchModelHost>(
      std::move(blocks), param_dtype, run.seed, run.train.decay == "matrices", device);
}

int64_t count_params(const YokeModelSummary& model) {
  int64_t count = 0;
  for (uint64_t i = 0; i < model.num_params; ++i) {
    count += numel(model.params[i]->shape, model.params[i]->ndim);
  }
  return count;
}

// Refuses a plan that requires a capability which the backend does not declare, even if the backend
// accepted the plan.
void check_capabilities(Draft& draft) {
  const YokePlan& plan = draft.plan->plan();
  const YokeDescription& description = draft.backend.description();
  const auto refuse =
      [&](const std::string& key, const std::string& given, const std::string& allowed) {
        const std::string& name = draft.backend.name();
        draft.faults.push_back(key + " = " + given + "; allowed: " + allowed + "; " + name +
                               " declares nothing else (see yoke backends info " + name + ")");
      };
  for (int axis = 0; axis < YOKE_NUM_AXES; ++axis) {
    if (plan.degree[axis] > 1 && (description.axes & YOKE_AXIS_BIT(axis)) == 0)
      refuse(std::string(Degrees::kKeys[axis]), std::to_string(plan.degree[axis]), "1");
  }
  if (plan.param_dtype == YOKE_F16 && draft.backend.table().abi_minor < 1)
    draft.faults.push_back("precision.param = \"fp16\": " + draft.backend.name() +
                           " was built with version 1.0 of parallel_backend.h, which has no loss "
                           "scale; build it with that of this Yoke, or use bf16");
  if (draft.config.run.train.max_skipped.value_or(0) > 0 &&
      (traits_of(draft.backend, *draft.inner) & YOKE_LOCAL_UPDATES) != 0)
    draft.faults.push_back(
        "train.max_skipped = " + std::to_string(*draft.config.run.train.max_skipped) +
        "; allowed: 0; " + "the replicas of " + draft.backend.name() +
        " update independently, so one of them may skip a step alone");
  std::vector<std::string> dtypes;
  for (uint64_t i = 0; i < description.num_param_dtypes; ++i) {
    if (description.param_dtypes[i] == plan.param_dtype) return;
    dtypes.push_back(dtype_name(description.param_dtypes[i]));
  }
  refuse("precision.param", dtype_name(plan.param_dtype), dtypes.empty() ? "none" : join(dtypes));
}

// Returns the model that a plan is made for.
std::unique_ptr<TorchModelHost> planned_model(Draft& draft, int32_t param_dtype) {
  const RunConfig& run = draft.config.run;
  DraftModel& model = *draft.model;
  BlockList blocks = model.family.make_blocks(family_args(run, model.options, param_dtype));
  draft.stored_shapes = blocks.stored_shapes;
  auto host = host_model(run, std::move(blocks), param_dtype, at::kCPU);
  if (!uses_torch(draft.backend, *draft.inner)) host->neutral_only();
  // Tied parameters count once, because the summary lists them once.
  if (model.info.num_params == 0) model.info.num_params = count_params(host->summary());
  return host;
}

PlanResult ask(const Draft& draft, const TorchModelHost& model, YokePlan& plan) {
  return draft.backend.plan(
      model.summary(), draft.options->data(), draft.options->size(), plan, draft.inner->for_plan());
}

}  // namespace

std::vector<OtherValue> values_of_other_config(Draft& draft) {
  if (!draft.options || !draft.model || draft.config.run.other_config == "check") return {};
  const auto& options = draft.options->items();
  // Only files and lists of variables have a content.
  const bool reads = std::any_of(
      options.begin(), options.end(), [](const auto& item) { return !item.content.empty(); });
  if (!reads) return {};
  try {
    RunPlan plan(draft.config.run, draft.world_size);
    const auto model = planned_model(draft, plan.plan().param_dtype);
    return unset_keys(ask(draft, *model, plan.plan()), draft.config);
  } catch (const Error&) {
    return {};
  }
}

void make_plan(Draft& draft) {
  const RunConfig& run = draft.config.run;
  draft.plan = std::make_unique<RunPlan>(run, draft.world_size);
  YokePlan& plan = draft.plan->plan();
  const auto model = planned_model(draft, plan.param_dtype);
  if (yoke_is_muon(plan.optimizer->kind) &&
      yoke_muon_memory(plan.optimizer, &model->summary()) == 0)
    draft.notes.emplace_back(
        "train.optimizer = \"muon\", but the model has no matrix in a block between the first and "
        "the last one, so all parameters are updated as with adamw");
  const YokePlan asked = plan;
  const YokeOptimizer optimizer = *plan.optimizer;
  PlanResult report = ask(draft, *model, plan);
  // The backend does not know train.max_micro_batch. If its choice is larger, a smaller one is
  // tried; the backend refuses that if its choice follows from something else, such as a config of
  // another program.
  if (!run.train.micro_batch && plan.micro_batch > run.train.max_micro_batch) {
    const YokePlan chosen = plan;
    plan.micro_batch =
        static_cast<int32_t>(divisors(plan.micro_batch, run.train.max_micro_batch).back());
    if (PlanResult smaller = ask(draft, *model, plan); smaller.refusals.empty()) {
      report = std::move(smaller);
    } else {
      plan = chosen;
    }
  }
  if (report.refusals.empty()) {
    const std::vector<std::string> faults = faults_of_backend(asked, optimizer, plan);
    if (!faults.empty()) {
      throw Refused(kExitPlugin,
                    "backend '" + draft.backend.name() + "': " + join(faults) +
                        "; a backend fills what is unset and refuses what it cannot do, so this "
                        "is a fault of the backend (" +
                        draft.backend.path() + ")");
    }
  }
  for (const PlanRemark& r : report.refusals) draft.faults.push_back(remark_text(r));
  for (const PlanRemark& r : report.notes) {
    if (r.allowed.empty()) draft.notes.push_back(remark_text(r));
  }
  if (const std::string note = unused_note(report, run); !note.empty()) draft.notes.push_back(note);
  for (std::string& fault : disagreements(report, run)) draft.faults.push_back(std::move(fault));
  if (!report.refusals.empty()) return;
  for (std::string& fault : draft.plan->complete(run.train.max_micro_batch))
    draft.faults.push_back(std::move(fault));
  check_capabilities(draft);
}

FamilyArgs family_args(const RunConfig& run, const OptionList& options, int32_t param_dtype) {
  return {.options = Options(options.data(), options.size()),
          .param_dtype = param_dtype,
          .seq_len = run.data.seq_len,
          .data_path = run.data.path.size() == 1 ? run.data.path[0] : ""};
}

std::unique_ptr<TorchModelHost> make_model(const Job& job,
                                           InputProbe* probe,
                                           const RankDevice* device) {
  const RunConfig& run = job.config.run;
  const int32_t param_dtype = job.plan->plan().param_dtype;
  BlockList blocks = job.family.make_blocks(family_args(run, job.model_options, param_dtype));
  if (probe != nullptr) probe->attach(blocks);
  auto model = host_model(
      run, std::move(blocks), param_dtype, device == nullptr ? at::kCPU : device->device());
  if (!uses_torch(job.backend, *job.inner)) model->neutral_only();
  return model;
}

}  // namespace yoke
