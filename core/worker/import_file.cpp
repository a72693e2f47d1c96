// The degrees of a run decide what some keys of a file mean, and the file decides the degrees, so a
// backend plans a file twice. The model is a small one unless the user gives another; lines that
// depend on it are found by planning with a second model, and refused.
#include "core/worker/import_file.hpp"

#include <algorithm>

#include "core/backend/inner_backends.hpp"
#include "core/backend/loader.hpp"
#include "core/backend/search.hpp"
#include "core/base/exit_code.hpp"
#include "core/config/options.hpp"
#include "core/worker/config_readers.hpp"

namespace yoke {
namespace {

// The model that a backend plans unless the user gives one, and another one that only serves to
// find the lines that depend on the model.
constexpr const char* kModel = "model.preset=tiny";
constexpr const char* kOtherModel = "model.preset=novels";

// Lets the backend plan a small model, on as many ranks as the product of the degrees. other: what
// the file says, as far as it is known. Variables are ignored, because the result depends on the
// file and the command line alone.
ImportAnswer ask(const std::vector<std::string>& overrides, const std::vector<OtherValue>& other) {
  const LoadedConfig config = load_config(std::nullopt, overrides, {}, backend_names, other);
  const RunConfig& run = config.run;
  const LoadedBackend backend =
      load_backend(find_backend(run.parallel_backend, search_dirs(SearchSettings::current())));
  const OptionList options = check_options(run.backend_options,
                                           {backend.name(), "backend '" + backend.name() + "'"},
                                           option_infos(backend.description()));
  ImportAnswer answer;
  answer.ranks = run.degrees.product();
  answer.global_batch = run.train.global_batch;
  RunPlan plan(run, answer.ranks);
  FamilyArgs args;
  args.param_dtype = plan.plan().param_dtype;
  args.seq_len = run.data.seq_len;
  const Family family = builtin_families(run.model, run.precision).at(run.model.family);
  const TorchModelHost model(
      family.make_blocks(args), args.param_dtype, 0, run.train.decay == "matrices");
  InnerBackends inner(run);
  answer.report =
      backend.plan(model.summary(), options.data(), options.size(), plan.plan(), inner.for_plan());
  return answer;
}

// Returns true if the user names the whole model; dimensions alone change that of the import.
bool gives_model(const ImportRequest& request) {
  return is_given(request, "model.preset") || is_given(request, "model.from") ||
         is_given(request, "model.config");
}

// Returns the overrides under which a reader plans: its file, the overrides of the user, and a
// small model without data unless the user gives others.
std::vector<std::string> overrides_of(const ImportRequest& request, const ConfigReader& reader) {
  std::vector<std::string> overrides = {"parallel_backend=" + reader.backend,
                                        reader.backend + "." + reader.option + "=" + request.file};
  if (!is_given(request, "data.path")) overrides.emplace_back("data.path=/dev/null");
  if (!gives_model(request)) overrides.emplace_back(kModel);
  for (const std::string& given : request.overrides)
    if (!given.starts_with(kChooses)) overrides.push_back(given);
  return overrides;
}

// Throws Refused if the reader refuses the whole file, which is then not of its program.
void check_accepted(const ConfigReader& reader, const PlanResult& report) {
  for (const PlanRemark& r : report.refusals) {
    if (r.key == reader.backend + "." + reader.option) throw Refused(kExitUsage, remark_text(r));
  }
}

// Returns why a reader refuses the whole file; "" if it finds keys of its program there.
std::string why_foreign(const ImportRequest& request, const ConfigReader& reader) {
  try {
    check_accepted(reader, ask(overrides_of(request, reader), request.inherited).report);
    return "";
  } catch (const Refused& e) {
    return e.what();
  }
}

// Returns the only reader that finds keys of its program in the file.
ConfigReader choose_by_content(const ImportRequest& request,
                               const std::vector<ConfigReader>& readers) {
  std::vector<ConfigReader> fitting;
  std::string reasons;
  for (const ConfigReader& reader : readers) {
    const std::string reason = why_foreign(request, reader);
    if (reason.empty()) fitting.push_back(reader);
    if (!reason.empty()) reasons += "\n  " + reader.backend + ": " + reason;
  }
  if (fitting.size() == 1) return fitting[0];
  throw Refused(kExitUsage,
                request.file + " can be read by " +
                    (fitting.empty() ? "no backend" : "several backends") +
                    "; correct it, or add parallel_backend=NAME" + reasons);
}

// If the name of a file matches the patterns of several backends, its content decides.
ConfigReader choose_reader(const ImportRequest& request) {
  std::vector<ConfigReader> fitting;
  std::string known;
  const std::vector<ConfigReader> all = config_readers(request.backend);
  for (const ConfigReader& reader : all) {
    known += (known.empty() ? "" : "; ") + reader.backend + ": " + reader.patterns;
    if (reader.accepts(request.file)) fitting.push_back(reader);
  }
  // A user who names the backend need not rename the file.
  if (fitting.empty() && all.size() == 1) return all[0];
  if (fitting.size() == 1) return fitting[0];
  if (fitting.size() > 1) return choose_by_content(request, fitting);
  throw Refused(kExitUsage,
                "the name of " + request.file + " matches the patterns of no backend (" +
                    (known.empty() ? "none imports files" : known) +
                    "); rename it, or add parallel_backend=NAME");
}

// The file determines the degrees, and thus the number of ranks. Both are known only after a first
// plan, so the backend plans twice.
Imported ask_twice(const ImportRequest& request, const ConfigReader& reader) {
  Imported imported;
  imported.request = request;
  imported.backend = reader.backend;
  imported.overrides = overrides_of(request, reader);
  imported.other = request.inherited;
  const ImportAnswer first = ask(imported.overrides, imported.other);
  for (const PlanRemark& r : first.report.notes) {
    const std::optional<OtherValue> value = value_of(r);
    if (!value || is_inherited(request, value->key)) continue;
    // The choice of the backend and of the file has been made.
    if (value->key == "parallel_backend" || value->key.starts_with(reader.backend + ".")) continue;
    // A plan needs no data.
    if (describes_data(value->key)) continue;
    // Two keys of the file may mean the same line.
    const bool known =
        std::any_of(imported.other.begin(), imported.other.end(), [&](const OtherValue& o) {
          return o.key == value->key && o.text == value->text;
        });
    if (!known) imported.other.push_back(*value);
  }
  imported.answer = ask(imported.overrides, imported.other);
  return imported;
}

// Without a model, the lines that are different for another one become refusals.
void refuse_lines_of_model(Imported& imported) {
  const ImportRequest& request = imported.request;
  std::vector<std::string> overrides = imported.overrides;
  for (std::string& override : overrides) {
    if (override == kModel) override = kOtherModel;
  }
  if (gives_model(request)) return;
  // A file that defines the model, such as one of Megatron, means the same with any preset.
  const PlanResult other = ask(overrides, imported.other).report;
  std::vector<PlanRemark>& notes = imported.answer.report.notes;
  const auto depends = [&](const PlanRemark& r) {
    return std::none_of(other.notes.begin(), other.notes.end(), [&](const PlanRemark& o) {
      return o.key == r.key && o.allowed == r.allowed;
    });
  };
  for (const PlanRemark& r : notes) {
    if (depends(r))
      imported.answer.report.refusals.push_back(
          {r.key,
           r.given,
           "",
           "it depends on the model; add that to the command, for example model.preset=tiny"});
  }
  std::erase_if(notes, depends);
}

}  // namespace

bool is_given(const ImportRequest& request, const std::string& key) {
  return std::any_of(request.overrides.begin(), request.overrides.end(), [&](const auto& o) {
    return o.starts_with(key + "=");
  });
}
bool is_inherited(const ImportRequest& request, const std::string& key) {
  return std::any_of(request.inherited.begin(), request.inherited.end(), [&](const auto& v) {
    return v.key == key;
  });
}

bool describes_data(const std::string& key) {
  return key == "data.path" || key == "data.order" || key == "data.split" ||
         key == "data.weights" || key == "eval.path";
}

bool is_of_file(const ImportRequest& request, const PlanRemark& remark) {
  return remark.key.starts_with(request.file + ":");
}

Imported import_file(const ImportRequest& request) {
  const ConfigReader reader = choose_reader(request);
  Imported imported = ask_twice(request, reader);
  check_accepted(reader, imported.answer.report);
  refuse_lines_of_model(imported);
  return imported;
}

}  // namespace yoke
