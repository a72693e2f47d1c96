#include "core/worker/import_config.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "core/backend/inner_backends.hpp"
#include "core/backend/loader.hpp"
#include "core/backend/search.hpp"
#include "core/base/exit_code.hpp"
#include "core/config/options.hpp"
#include "core/config/toml_file.hpp"
#include "core/run/job.hpp"
#include "yoke/nearest.hpp"

namespace yoke {
namespace {

// A backend that reads config files, and the option that takes their path.
struct Reader {
  std::string backend;
  std::string option;
  std::string patterns;  // file names that the option accepts, e.g. "ds_config*.json, *.json"
};

struct Request {
  std::string file;
  std::vector<std::string> overrides;
};

Request parse(const std::vector<std::string>& args) {
  if (args.empty() || args[0].starts_with("-") || args[0].find('=') != std::string::npos) {
    throw Refused(kExitUsage, "usage: yoke config import FILE [KEY=VALUE ...]");
  }
  if (!std::filesystem::is_regular_file(args[0]))
    throw Refused(kExitUsage, "yoke config import: " + args[0] + " is not a file");
  return {args[0], {args.begin() + 1, args.end()}};
}

std::vector<Reader> readers_of(const LoadedBackend& backend) {
  std::vector<Reader> readers;
  for (const OptionInfo& info : option_infos(backend.description())) {
    if (info.type == YOKE_OPTION_FILE && !info.choices.empty())
      readers.push_back({backend.name(), info.key, join(info.choices)});
  }
  return readers;
}

// Returns the readers of the backend that the overrides name, or else of every backend that can be
// found and used.
std::vector<Reader> all_readers(const std::vector<std::string>& overrides) {
  const std::string chooses = "parallel_backend=";
  const auto dirs = search_dirs(SearchSettings::current());
  for (const std::string& override : overrides) {
    if (!override.starts_with(chooses)) continue;
    return readers_of(load_backend(find_backend(override.substr(chooses.size()), dirs)));
  }
  std::vector<Reader> all;
  for (const Candidate& candidate : list_candidates(dirs)) {
    if (!candidate.problem.empty() || !candidate.shadowed_by.empty()) continue;
    try {
      const auto some = readers_of(load_backend(candidate.path));
      all.insert(all.end(), some.begin(), some.end());
    } catch (const Error&) {
      // Skip it; `yoke backends list` reports what is wrong with it.
    }
  }
  return all;
}

// Returns whether the name of `file` matches one of the patterns.
bool fits(const std::string& file, const std::string& patterns) {
  const std::string name = std::filesystem::path(file).filename();
  for (size_t begin = 0; begin < patterns.size();) {
    const size_t end = std::min(patterns.find(", ", begin), patterns.size());
    if (::fnmatch(patterns.substr(begin, end - begin).c_str(), name.c_str(), 0) == 0) return true;
    begin = end + 2;
  }
  return false;
}

Reader choose_reader(const Request& request) {
  std::vector<Reader> fitting;
  std::string known;
  const std::vector<Reader> all = all_readers(request.overrides);
  for (const Reader& reader : all) {
    known += (known.empty() ? "" : "; ") + reader.backend + ": " + reader.patterns;
    if (fits(request.file, reader.patterns)) fitting.push_back(reader);
  }
  if (fitting.size() == 1) return fitting[0];
  throw Refused(kExitUsage,
                "yoke config import: the name of " + request.file + " matches the patterns of " +
                    (fitting.empty() ? "no backend" : "several backends") + " (" +
                    (known.empty() ? "none imports files" : known) +
                    "); rename it, or add parallel_backend=NAME");
}

// Lets the backend plan a small model, on as many ranks as the product of the degrees in the
// overrides.
PlanResult ask(const std::vector<std::string>& overrides, int32_t& ranks) {
  const LoadedConfig config =
      load_config(std::nullopt, overrides, process_environment(), backend_names);
  const RunConfig& run = config.run;
  const LoadedBackend backend =
      load_backend(find_backend(run.parallel_backend, search_dirs(SearchSettings::current())));
  const OptionList options = check_options(run.backend_options,
                                           {backend.name(), "backend '" + backend.name() + "'"},
                                           option_infos(backend.description()));
  ranks = run.degrees.product();
  RunPlan plan(run, ranks);
  FamilyArgs args;
  args.param_dtype = plan.plan().param_dtype;
  args.seq_len = run.data.seq_len;
  const Family family = builtin_families(run.model, run.precision).at(run.model.family);
  const TorchModelHost model(
      family.make_blocks(args), args.param_dtype, 0, run.train.decay == "matrices");
  InnerBackends inner(run);
  return backend.plan(
      model.summary(), options.data(), options.size(), plan.plan(), inner.for_plan());
}

// Turns `tp_degree = 2` into `tp_degree=2`, as on a command line.
std::string as_override(const std::string& line) {
  const size_t equals = line.find(" = ");
  return line.substr(0, equals) + "=" + line.substr(equals + 3);
}

bool is_given(const Request& request, const std::string& key) {
  const auto& all = request.overrides;
  return std::any_of(
      all.begin(), all.end(), [&](const std::string& o) { return o.starts_with(key + "="); });
}

// The file determines the degrees, and thus the number of ranks. Both are known only after a first
// plan, so the backend plans twice.
PlanResult ask_twice(const Request& request, const Reader& reader, int32_t& ranks) {
  std::vector<std::string> overrides = {reader.backend + "." + reader.option + "=" + request.file};
  for (const std::string other : {"data.path=/dev/null", "model.preset=tiny"}) {
    if (!is_given(request, other.substr(0, other.find('=')))) overrides.push_back(other);
  }
  overrides.insert(overrides.end(), request.overrides.begin(), request.overrides.end());
  overrides.push_back("parallel_backend=" + reader.backend);
  const PlanResult first = ask(overrides, ranks);
  // Matches the lines that repeat the choice of the backend or of the file.
  const auto of_reader = [&](const std::string& line) {
    return line.starts_with("parallel_backend") || line.starts_with(reader.backend + ".");
  };
  for (const PlanRemark& r : first.notes) {
    if (!r.allowed.empty() && !of_reader(r.allowed)) overrides.push_back(as_override(r.allowed));
  }
  return ask(overrides, ranks);
}

void print(const std::string& file, const PlanResult& report) {
  const auto of_file = [&](const PlanRemark& r) { return r.key.starts_with(file + ":"); };
  for (const PlanRemark& r : report.notes) {
    if (of_file(r) && !r.allowed.empty())
      std::printf("%-48s # %s = %s\n", r.allowed.c_str(), r.key.c_str(), r.given.c_str());
  }
  for (const PlanRemark& r : report.notes) {
    if (of_file(r) && r.allowed.empty()) std::printf("# %s\n", remark_text(r).c_str());
  }
  for (const PlanRemark& r : report.refusals) {
    if (of_file(r)) std::printf("# refused: %s\n", remark_text(r).c_str());
  }
}

// Prints the keys that the command line gives beside the file, such as data.path.
void print_overrides(const Request& request) {
  for (const std::string& override : request.overrides) {
    const size_t equals = override.find('=');
    const std::string key = override.substr(0, equals);
    const std::string text = override.substr(std::min(equals + 1, override.size()));
    if (key == "parallel_backend") continue;
    const std::string value = parse_toml_value(text) ? text : toml_string(text);
    std::printf("%-48s # command line\n", (key + " = " + value).c_str());
  }
}

}  // namespace

int import_config(const std::vector<std::string>& args) {
  const Request request = parse(args);
  try {
    const Reader reader = choose_reader(request);
    int32_t ranks = 1;
    const PlanResult report = ask_twice(request, reader, ranks);
    for (const PlanRemark& r : report.refusals) {
      if (r.key == reader.backend + "." + reader.option) throw Refused(kExitUsage, remark_text(r));
    }
    std::printf("# %s, as %s reads it; for %d rank(s)\n",
                request.file.c_str(),
                reader.backend.c_str(),
                ranks);
    print(request.file, report);
    print_overrides(request);
    return kExitOk;
  } catch (const ConfigError& e) {
    throw Refused(kExitUsage, e.what());
  } catch (const Refused&) {
    throw;
  } catch (const Error& e) {
    throw Refused(kExitPlugin, e.what());
  }
}

}  // namespace yoke
