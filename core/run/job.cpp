// Builds a job in a fixed order: configuration, backend, options, model family, data, plan, device.
// Later parts need earlier ones, but users want to see all faults of a run at once. So a part that
// fails adds its fault to the draft and leaves its member empty, and every later part that does not
// need that member still runs. Stopping at the first fault was rejected: users would have to start
// a run once for each mistake in its run file.
#include "core/run/job.hpp"

#include <set>
#include <utility>

#include "core/backend/loader.hpp"
#include "core/backend/search.hpp"
#include "core/base/exit_code.hpp"
#include "core/data/run_data.hpp"
#include "core/launch/device_choice.hpp"
#include "core/model/adapters.hpp"
#include "core/run/job_data.hpp"
#include "core/run/job_draft.hpp"
#include "core/run/other_config.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

LoadedConfig read_config(const std::string& path,
                         const std::vector<std::string>& overrides,
                         const std::vector<OtherValue>& other) {
  try {
    return load_config(path, overrides, process_environment(), backend_names, other);
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
                  const RankCount& ranks,
                  const std::vector<OtherValue>& other) {
  LoadedConfig config = read_config(config_path, overrides, other);
  LoadedBackend backend = find_and_load(config.run);
  auto inner = std::make_unique<InnerBackends>(config.run);
  const int32_t world_size = ranks.world_size > 0 ? ranks.world_size : config.run.degrees.product();
  return {.config = std::move(config),
          .backend = std::move(backend),
          .inner = std::move(inner),
          .world_size = world_size};
}

// Stores the values and the notes of checked options in the draft.
void take_options(Draft& draft, const std::string& table, const OptionList& options) {
  fill_options(draft.config, table, options);
  for (const auto& item : options.items())
    if (!item.note.empty()) draft.notes.push_back(table + "." + item.key + ": " + item.note);
}

void read_options(Draft& draft) {
  const LoadedBackend& backend = draft.backend;
  OptionList options = check_options(draft.config.run.backend_options,
                                     {backend.name(), "backend '" + backend.name() + "'"},
                                     option_infos(backend.description()));
  take_options(draft, backend.name(), options);
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

void choose_family(Draft& draft, const std::map<std::string, Family>& own) {
  const RunConfig& run = draft.config.run;
  const std::string name = "model family '" + run.model.family + "'";
  Family family = find_family(run, own);
  if (!family.make_blocks)
    throw Error(YOKE_INVALID_ARGUMENT, name + ": Family.make_blocks is empty; set it");
  OptionList options = check_options(run.backend_options, {"model", name}, family.options);
  take_options(draft, "model", options);
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
  draft.data = open_run_data(run, vocab);
}

// A family with samples of its own receives at most one path and reads it itself.
void require_own_samples_only(const RunConfig& run) {
  const char* unused = run.data.path.size() > 1      ? "a data.path with several entries"
                       : !run.data.weights.empty()   ? "data.weights"
                       : !run.eval.path.empty()      ? "eval.path"
                       : run.data.mask == "required" ? "data.mask"
                       : run.data.pad_token          ? "data.pad_token"
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

// An option on the command line is meant for this run, so one for another backend is reported. A
// run file may have tables for several backends.
void note_unused_options(Draft& draft) {
  std::set<std::string> used{draft.backend.name(), "model"};
  for (const auto* inner : draft.inner->opened()) used.insert(inner->backend.name());
  for (const BackendOption& option : draft.config.run.backend_options) {
    if (option.origin == "command line" && used.count(option.backend) == 0)
      draft.notes.push_back(option.backend + "." + option.key + " has no effect: the backend is " +
                            draft.backend.name() +
                            "; to use the other one, add parallel_backend=" + option.backend);
  }
}

void choose_device(Draft& draft, const RankCount& ranks) {
  DeviceFacts facts;
  facts.asked = draft.config.run.device;
  facts.built = has_cuda_library();
  if (facts.asked != "cpu") facts.driver = nvidia_driver();
  facts.backend = draft.backend.name();
  facts.declared = draft.backend.description().devices;
  facts.local_ranks = ranks.machines > 0 ? draft.world_size / ranks.machines : 0;
  facts.threads = ranks.threads && draft.world_size > 1;
  draft.on_cuda = runs_on_cuda(facts);
  if (std::string note = note_on_unused_devices(facts); !note.empty())
    draft.notes.push_back(std::move(note));
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
  const auto begin = [&](const std::vector<OtherValue>& other) {
    Draft draft = start_draft(config_path, overrides, ranks, other);
    draft.attempt([&] { read_options(draft); });
    draft.attempt([&] { choose_family(draft, families); });
    return draft;
  };
  Draft draft = begin({});
  // Only the backend can read the config of another program, so the job begins anew with what that
  // config says.
  if (const std::vector<OtherValue> other = values_of_other_config(draft); !other.empty()) {
    draft = begin(other);
    draft.notes.push_back(filled_note(other));
  }
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
  note_unused_options(draft);
  if (trains) draft.attempt([&] { choose_device(draft, ranks); });
  return finish(std::move(draft));
}

}  // namespace yoke
