// Builds a job in a fixed order: configuration, backend, options, model family, data, plan, device.
// Later parts need earlier ones, but users want to see all faults of a run at once. So a part that
// fails adds its fault to the draft and leaves its member empty, and every later part that does not
// need that member still runs. Stopping at the first fault was rejected: users would have to start
// a run once for each mistake in its run file.
#include "core/run/job.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/backend/loader.hpp"
#include "core/backend/search.hpp"
#include "core/base/exit_code.hpp"
#include "core/launch/device_choice.hpp"
#include "core/model/adapters.hpp"
#include "core/run/job_data.hpp"
#include "core/run/other_config.hpp"
#include "yoke/nearest.hpp"
#include "yoke/plan.hpp"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"
#include "yoke/torch.hpp"

namespace yoke {
namespace {

// The model family of the run.
struct DraftModel {
  Family family;
  OptionList options;
  ModelInfo info;
};

// A job under construction. A member is empty until its value is known, and stays empty after a
// fault.
struct Draft {
  LoadedConfig config;
  LoadedBackend backend;
  std::unique_ptr<InnerBackends> inner;
  int32_t world_size;
  std::optional<OptionList> options{};
  std::optional<DraftModel> model{};
  std::optional<DataSet> data{};
  Samples samples{};
  Shapes stored_shapes{};
  std::unique_ptr<RunPlan> plan{};
  bool on_cuda = false;
  std::vector<std::string> notes{};
  std::vector<std::string> faults{};

  // Runs f and turns what it throws into faults.
  template <class F>
  void attempt(F&& f) {
    try {
      f();
    } catch (const Refused&) {
      throw;  // nothing else can be checked
    } catch (const ConfigError& e) {
      faults.insert(faults.end(), e.faults().begin(), e.faults().end());
    } catch (const Error& e) {
      faults.push_back(e.what());
    }
  }
};

LoadedConfig read_config(const std::string& path, const std::vector<std::string>& overrides) {
  try {
    return load_config(path, overrides, process_environment(), backend_names);
  } catch (const ConfigError& e) {
    throw Refused(kExitUsage, e.what());
  }
}

LoadedBackend find_and_load(const RunConfig& run) {
  try {
    return load_backend(
        find_backend(run.parallel_backend, search_dirs(SearchSettings::current(run.backend_path))));
  } catch (const Error& e) {
    throw Refused(kExitPlugin, e.what());
  }
}

// Reads the configuration and loads the backend. Without both there is nothing else to check, so
// their faults are thrown at once.
Draft start_draft(const std::string& config_path,
                  const std::vector<std::string>& overrides,
                  const RankCount& ranks) {
  LoadedConfig config = read_config(config_path, overrides);
  LoadedBackend backend = find_and_load(config.run);
  auto inner = std::make_unique<InnerBackends>(config.run);
  const int32_t world_size = ranks.world_size > 0 ? ranks.world_size : config.run.degrees.product();
  return {.config = std::move(config),
          .backend = std::move(backend),
          .inner = std::move(inner),
          .world_size = world_size};
}

void read_options(Draft& draft) {
  const LoadedBackend& backend = draft.backend;
  OptionList options = check_options(draft.config.run.backend_options,
                                     {backend.name(), "backend '" + backend.name() + "'"},
                                     option_infos(backend.description()));
  fill_options(draft.config, backend.name(), options);
  draft.options = std::move(options);
}

// ---- Model family and data ----

Family find_family(const RunConfig& run, const std::map<std::string, Family>& own) {
  std::map<std::string, Family> all = builtin_families(run.model, run.precision);
  const std::string& name = run.model.family;
  if (run.precision.product == "fp8" && own.count(name) != 0) {
    throw Error(YOKE_INVALID_ARGUMENT,
                "precision.product = \"fp8\": the products of model family '" + name +
                    "' are those of its own modules; allowed: \"param\", or a family of Yoke");
  }
  if (run.model.lora.rank > 0 && own.count(name) != 0) {
    throw Error(YOKE_INVALID_ARGUMENT,
                concat("lora.rank = ",
                       run.model.lora.rank,
                       ": the linear layers of model family '",
                       name,
                       "' are those of its own modules; allowed: 0, or a family of Yoke"));
  }
  all.insert(own.begin(), own.end());
  if (auto it = all.find(name); it != all.end()) return with_frozen(it->second, run.model.freeze);
  std::vector<std::string> names;
  for (const auto& [known, family] : all) names.push_back(known);
  throw Error(YOKE_INVALID_ARGUMENT,
              "model.family = \"" + name + "\" is not known to this worker; allowed: " +
                  join(names) + did_you_mean(name, names));
}

FamilyArgs family_args(const RunConfig& run, const OptionList& options, int32_t param_dtype) {
  return {.options = Options(options.data(), options.size()),
          .param_dtype = param_dtype,
          .seq_len = run.data.seq_len,
          .data_path = run.data.path.size() == 1 ? run.data.path[0] : ""};
}

void choose_family(Draft& draft, const std::map<std::string, Family>& own) {
  const RunConfig& run = draft.config.run;
  const std::string name = "model family '" + run.model.family + "'";
  Family family = find_family(run, own);
  if (!family.make_blocks)
    throw Error(YOKE_INVALID_ARGUMENT, name + ": Family.make_blocks is empty; set it");
  OptionList options = check_options(run.backend_options, {"model", name}, family.options);
  fill_options(draft.config, "model", options);
  ModelInfo info;
  if (family.info)
    info = family.info(family_args(run, options, dtype_by_name(run.precision.param)));
  for (const std::string& note : info.notes) draft.notes.push_back(note);
  // Set last: if the family has a fault, later parts would build its blocks and report it again.
  draft.model = DraftModel{std::move(family), std::move(options), std::move(info)};
}

void open_stream(Draft& draft) {
  const RunConfig& run = draft.config.run;
  // If the family is unknown because of a fault, it is also unknown whether data.path is needed.
  if (!draft.model && run.data.path.empty()) return;
  const int64_t vocab = draft.model ? draft.model->info.vocab : 0;
  draft.data = open_data(run.data, run.train.global_batch, run.seed, vocab, run.eval.path);
}

// A family with samples of its own receives at most one path and reads it itself.
void require_own_samples_only(const RunConfig& run) {
  const char* unused = run.data.path.size() > 1    ? "a data.path with several entries"
                       : !run.data.weights.empty() ? "data.weights"
                       : !run.eval.path.empty()    ? "eval.path"
                                                   : nullptr;
  if (unused == nullptr) return;
  throw Error(YOKE_INVALID_ARGUMENT,
              "model family '" + run.model.family + "' has samples of its own, so " + unused +
                  " has no meaning for it; allowed: at most one data.path");
}

// Opens data.path, or uses the family's own samples.
void open_samples(Draft& draft) {
  if (!draft.model || !draft.model->family.samples) return open_stream(draft);
  const RunConfig& run = draft.config.run;
  require_own_samples_only(run);
  Samples samples = draft.model->family.samples(
      family_args(run, draft.model->options, dtype_by_name(run.precision.param)));
  const std::string name = "model family '" + run.model.family + "': ";
  if (!samples.read) {
    throw Error(YOKE_INVALID_ARGUMENT,
                name +
                    "Samples.read is empty; set it to a function from an index to the inputs "
                    "of that sample");
  }
  if (samples.targets < 1) {
    throw Error(YOKE_INVALID_ARGUMENT,
                name + concat("Samples.targets = ", samples.targets, "; allowed: 1 or more"));
  }
  draft.data =
      split_samples(run.data, samples.count, samples.targets, run.train.global_batch, run.seed);
  draft.samples = std::move(samples);
}

void check_data(Draft& draft) {
  const int64_t vocab = draft.model ? draft.model->info.vocab : 0;
  for (std::string& fault : data_faults(draft.config.run, *draft.data, vocab))
    draft.faults.push_back(std::move(fault));
  for (std::string& note : data_notes(*draft.data, vocab)) draft.notes.push_back(std::move(note));
}

// ---- Plan and device ----

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

// Lets the backend fill in the plan, then checks the completed plan against the rules for mesh and
// batch.
void make_plan(Draft& draft) {
  const RunConfig& run = draft.config.run;
  draft.plan = std::make_unique<RunPlan>(run, draft.world_size);
  YokePlan& plan = draft.plan->plan();
  DraftModel& model = *draft.model;
  BlockList blocks = model.family.make_blocks(family_args(run, model.options, plan.param_dtype));
  draft.stored_shapes = blocks.stored_shapes;
  const auto host = host_model(run, std::move(blocks), plan.param_dtype, at::kCPU);
  if (!uses_torch(draft.backend, *draft.inner)) host->neutral_only();
  // Tied parameters count once, because the summary lists them once.
  if (model.info.num_params == 0) model.info.num_params = count_params(host->summary());

  const auto ask = [&] {
    return draft.backend.plan(host->summary(),
                              draft.options->data(),
                              draft.options->size(),
                              plan,
                              draft.inner->for_plan());
  };
  const YokePlan asked = plan;
  const YokeOptimizer optimizer = *plan.optimizer;
  PlanResult report = ask();
  // The backend does not know train.max_micro_batch. If its choice is larger, a smaller one is
  // tried; the backend refuses that if its choice follows from something else, such as a config of
  // another program.
  if (!run.train.micro_batch && plan.micro_batch > run.train.max_micro_batch) {
    const YokePlan chosen = plan;
    plan.micro_batch =
        static_cast<int32_t>(divisors(plan.micro_batch, run.train.max_micro_batch).back());
    if (PlanResult smaller = ask(); smaller.refusals.empty()) {
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
  for (std::string& fault : disagreements(report, run)) draft.faults.push_back(std::move(fault));
  if (!report.refusals.empty()) return;
  for (std::string& fault : draft.plan->complete(run.train.max_micro_batch))
    draft.faults.push_back(std::move(fault));
  check_capabilities(draft);
}

void choose_device(Draft& draft, const RankCount& ranks) {
  DeviceFacts facts;
  facts.asked = draft.config.run.device;
  facts.built = has_cuda_library();
  if (facts.asked != "cpu") facts.driver = nvidia_driver();
  facts.backend = draft.backend.name();
  facts.declared = draft.backend.description().devices;
  facts.local_ranks = ranks.all_local ? draft.world_size : 1;
  facts.threads = ranks.threads && draft.world_size > 1;
  draft.on_cuda = runs_on_cuda(facts);
}

// Throws Refused if there is any fault: "this run: 2 faults:\n  ...", or the one fault.
Job finish(Draft draft) {
  if (!draft.faults.empty()) {
    throw Refused(draft.inner->any_unusable() ? kExitPlugin : kExitUsage,
                  ConfigError("this run", draft.faults).what());
  }
  return {.config = std::move(draft.config),
          .backend = std::move(draft.backend),
          .inner = std::move(draft.inner),
          .options = std::move(draft.options).value(),
          .model_options = std::move(draft.model->options),
          .data = std::move(draft.data).value(),
          .samples = std::move(draft.samples),
          .family = std::move(draft.model->family),
          .model = std::move(draft.model->info),
          .stored_shapes = std::move(draft.stored_shapes),
          .plan = std::move(draft.plan),
          .on_cuda = draft.on_cuda,
          .notes = std::move(draft.notes)};
}

}  // namespace

Job make_job(const std::string& config_path,
             const std::vector<std::string>& overrides,
             const RankCount& ranks,
             const std::map<std::string, Family>& families,
             JobPurpose purpose) {
  Draft draft = start_draft(config_path, overrides, ranks);
  draft.attempt([&] { read_options(draft); });
  draft.attempt([&] { choose_family(draft, families); });
  const bool trains = purpose == JobPurpose::kTrain;
  if (trains) {
    draft.attempt([&] { open_samples(draft); });
    if (draft.data) check_data(draft);
  } else {
    const Sampler nothing(0, 0, false, 0);
    draft.data = DataSet{.sources = {}, .ranges = {}, .train = nothing, .held_out = nothing};
  }
  // The backend's plan() is called only with valid options and a valid model.
  if (draft.options && draft.model) draft.attempt([&] { make_plan(draft); });
  if (trains) draft.attempt([&] { choose_device(draft, ranks); });
  return finish(std::move(draft));
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
