#include "core/run/job.hpp"

#include <algorithm>

#include "core/backend/loader.hpp"
#include "core/backend/search.hpp"
#include "core/base/exit_code.hpp"
#include "core/launch/device_choice.hpp"
#include "yoke/nearest.hpp"
#include "yoke/tensor.hpp"
#include "yoke/torch.hpp"

namespace yoke {
namespace {

int32_t product(const Degrees& degrees) {
  int32_t world = 1;
  for (size_t axis = 0; axis < Degrees::kAxes.size(); ++axis) {
    world *= const_cast<Degrees&>(degrees)[axis].value_or(1);
  }
  return world;
}

// "2 faults:\n  ...\n  ..." or the one fault.
[[noreturn]] void refuse(const std::vector<std::string>& faults, int exit_code) {
  throw Refused(exit_code, ConfigError("this run", faults).what());
}

LoadedBackend find_and_load(const RunConfig& run) {
  try {
    return load_backend(
        find_backend(run.parallel_backend, search_dirs(SearchSettings::current(run.backend_path))));
  } catch (const Error& e) {
    throw Refused(kExitPlugin, e.what());
  }
}

Family find_family(const RunConfig& run, const std::map<std::string, Family>& own) {
  std::map<std::string, Family> all = builtin_families(run.model);
  all.insert(own.begin(), own.end());
  const std::string& name = run.model.family;
  if (auto it = all.find(name); it != all.end()) return it->second;
  std::vector<std::string> names;
  for (const auto& [known, family] : all) names.push_back(known);
  throw Error(YOKE_INVALID_ARGUMENT,
              "model.family = \"" + name + "\" is not known to this worker; allowed: " +
                  join(names) + did_you_mean(name, names));
}

FamilyArgs family_args(const Job& job) {
  const DataConfig& data = job.config.run.data;
  return {.options = Options(job.model_options.data(), job.model_options.size()),
          .param_dtype = job.plan->plan().param_dtype,
          .seq_len = data.seq_len,
          .data_path = data.path};
}

// Runs f; what it throws becomes one more fault.
template <class F>
void collect(std::vector<std::string>& faults, F&& f) {
  try {
    f();
  } catch (const ConfigError& e) {
    faults.insert(faults.end(), e.faults().begin(), e.faults().end());
  } catch (const Error& e) {
    faults.push_back(e.what());
  }
}

// The family with its options. job.family stays empty if there is a fault.
void take_family(Job& job, const std::map<std::string, Family>& own) {
  const RunConfig& run = job.config.run;
  const Family family = find_family(run, own);
  job.model_options = check_options(
      run.backend_options, {"model", "model family '" + run.model.family + "'"}, family.options);
  fill_options(job.config, "model", job.model_options);
  if (family.info) job.model = family.info(family_args(job));
  job.family = family;  // not before: making its blocks would say the same faults again
}

// Tokens of data.path, or what the family makes.
void open_samples(Job& job) {
  const RunConfig& run = job.config.run;
  if (!job.family.samples) {
    // Of a family that is at fault it is not known whether it needs a path.
    if (job.family.make_blocks || !run.data.path.empty())
      job.data = open_data(run.data, run.train.global_batch, run.seed, job.model.vocab);
    return;
  }
  Samples samples = job.family.samples(family_args(job));
  if (!samples.read || samples.targets < 1) {
    throw Error(YOKE_INVALID_ARGUMENT,
                "model family '" + run.model.family + "': its samples have " +
                    (samples.read ? std::to_string(samples.targets) + " targets; allowed: 1 or more"
                                  : "no read; give a function from an index to inputs"));
  }
  job.data =
      split_samples(run.data, samples.count, samples.targets, run.train.global_batch, run.seed);
  job.samples = std::move(samples);
}

void check_data(const Job& job, std::vector<std::string>& faults) {
  const RunConfig& run = job.config.run;
  if (job.data.stream && job.model.vocab > 0 && job.model.vocab < job.data.stream->vocab()) {
    faults.push_back("model.vocab = " + std::to_string(job.model.vocab) + ", but " + run.data.path +
                     " has token ids up to " + std::to_string(job.data.stream->vocab() - 1) +
                     "; allowed: at least " + std::to_string(job.data.stream->vocab()));
  }
  if (run.eval.every > 0 && job.data.held_out.num_windows() < run.train.global_batch) {
    faults.push_back(
        "eval.every = " + std::to_string(run.eval.every) + ", but the held-out tail has " +
        std::to_string(job.data.held_out.num_windows()) +
        " windows, fewer than one global batch of " + std::to_string(run.train.global_batch) +
        "; raise data.holdout or set eval.every = 0");
  }
}

int64_t count_params(const YokeModelSummary& model) {
  int64_t count = 0;
  for (uint64_t i = 0; i < model.num_params; ++i) {
    count += numel(model.params[i]->shape, model.params[i]->ndim);
  }
  return count;
}

// A plan must not ask for what the backend does not declare, also if the backend let it pass.
void check_capabilities(const YokePlan& plan,
                        const LoadedBackend& backend,
                        std::vector<std::string>& faults) {
  const YokeDescription& can = backend.description();
  const auto refuse =
      [&](const std::string& key, const std::string& given, const std::string& allowed) {
        faults.push_back(key + " = " + given + "; allowed: " + allowed + "; " + backend.name() +
                         " declares nothing else: yoke backends info " + backend.name());
      };
  for (int axis = 0; axis < YOKE_NUM_AXES; ++axis) {
    if (plan.degree[axis] > 1 && (can.axes & YOKE_AXIS_BIT(axis)) == 0)
      refuse(std::string(Degrees::kKeys[axis]), std::to_string(plan.degree[axis]), "1");
  }
  std::string dtypes;
  bool known = false;
  for (uint64_t i = 0; i < can.num_param_dtypes; ++i) {
    dtypes += (dtypes.empty() ? "" : ", ") + std::string(dtype_name(can.param_dtypes[i]));
    known = known || can.param_dtypes[i] == plan.param_dtype;
  }
  if (!known)
    refuse("precision.param", dtype_name(plan.param_dtype), dtypes.empty() ? "none" : dtypes);
}

void ask_backend(Job& job, std::vector<std::string>& faults) {
  job.plan = std::make_unique<RunPlan>(job.config.run, job.plan->plan().world_size);
  const auto model = make_model(job);
  if (job.model.num_params == 0) job.model.num_params = count_params(model->summary());
  const PlanReport report = job.backend.plan(model->summary(),
                                             job.options.data(),
                                             job.options.size(),
                                             job.plan->plan(),
                                             job.inner->for_plan());
  for (const PlanRemark& r : report.refusals) faults.push_back(remark_text(r));
  for (const PlanRemark& r : report.notes) {
    if (r.allowed.empty()) job.notes.push_back(remark_text(r));
  }
  if (!report.refusals.empty()) return;
  for (std::string& fault : job.plan->complete(job.config.run.train.max_micro_batch))
    faults.push_back(fault);
  check_capabilities(job.plan->plan(), job.backend, faults);
}

DeviceFacts device_facts(const Job& job, const RankCount& ranks) {
  DeviceFacts facts;
  facts.asked = job.config.run.device;
  facts.built = has_cuda_library();
  if (facts.asked != "cpu") facts.driver = nvidia_driver();
  facts.backend = job.backend.name();
  facts.declared = job.backend.description().devices;
  const int32_t world = job.plan->plan().world_size;
  facts.local_ranks = ranks.here ? world : 1;
  facts.threads = ranks.threads && world > 1;
  return facts;
}

}  // namespace

Job make_job(const std::string& config_path,
             const std::vector<std::string>& overrides,
             const RankCount& ranks,
             const std::map<std::string, Family>& families) {
  LoadedConfig config = [&] {
    try {
      return load_config(config_path, overrides, process_environment(), backend_names);
    } catch (const ConfigError& e) {
      throw Refused(kExitUsage, e.what());
    }
  }();
  LoadedBackend backend = find_and_load(config.run);
  Job job{std::move(config),
          backend,
          nullptr,
          OptionList({}),
          OptionList({}),
          {nullptr, 0, Sampler(0, 0, false, 0), Sampler(0, 0, false, 0)},
          {},
          {},
          {},
          nullptr,
          false,
          {}};
  const RunConfig& run = job.config.run;
  job.inner = std::make_unique<InnerBackends>(run);
  job.plan = std::make_unique<RunPlan>(run, ranks.world > 0 ? ranks.world : product(run.degrees));

  std::vector<std::string> faults;
  collect(faults, [&] {
    job.options = check_options(run.backend_options,
                                {backend.name(), "backend '" + backend.name() + "'"},
                                option_infos(backend.description()));
    fill_options(job.config, backend.name(), job.options);
  });
  collect(faults, [&] { take_family(job, families); });
  collect(faults, [&] { open_samples(job); });
  if (job.data.train.num_windows() > 0) check_data(job, faults);
  // The backend judges what is otherwise complete; the batch and mesh rules need its answer.
  if (job.family.make_blocks && job.options.size() == backend.description().num_options) {
    collect(faults, [&] { ask_backend(job, faults); });
  }
  collect(faults, [&] { job.on_cuda = runs_on_cuda(device_facts(job, ranks)); });
  if (!faults.empty()) refuse(faults, job.inner->any_unusable() ? kExitPlugin : kExitUsage);
  return job;
}

// The backend, or one that it stands on, was built with the LibTorch of this program.
static bool wants_torch(const Job& job) {
  const auto same = [](const LoadedBackend& b) {
    return view(b.description().torch_tag) == kTorchTag;
  };
  const auto opened = job.inner->opened();
  return same(job.backend) || std::any_of(opened.begin(), opened.end(), [&](const auto* inner) {
           return same(inner->backend);
         });
}

std::unique_ptr<TorchModelHost> make_model(const Job& job,
                                           InputProbe* probe,
                                           const RankDevice* device) {
  const RunConfig& run = job.config.run;
  BlockList blocks = job.family.make_blocks(family_args(job));
  if (probe != nullptr) probe->attach(blocks);
  auto model = std::make_unique<TorchModelHost>(std::move(blocks),
                                                job.plan->plan().param_dtype,
                                                run.seed,
                                                run.train.decay == "matrices",
                                                device == nullptr ? at::kCPU : device->device());
  if (!wants_torch(job)) model->neutral_only();
  return model;
}

}  // namespace yoke
