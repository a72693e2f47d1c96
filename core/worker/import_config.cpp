#include "core/worker/import_config.hpp"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <set>
#include <string_view>

#include "core/backend/inner_backends.hpp"
#include "core/backend/loader.hpp"
#include "core/backend/search.hpp"
#include "core/base/exit_code.hpp"
#include "core/config/options.hpp"
#include "core/config/toml_file.hpp"
#include "core/run/job.hpp"
#include "core/run/other_config.hpp"
#include "core/worker/config_readers.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr std::string_view kChooses = "parallel_backend=";
// The model that a backend plans unless the user gives one, and another one that only serves to
// find the lines that depend on the model.
constexpr const char* kModel = "model.preset=tiny";
constexpr const char* kOtherModel = "model.preset=novels";

struct Request {
  bool partial = false;  // whether keys that cannot be honoured become comments
  std::string file;
  std::vector<std::string> overrides;
  std::string backend;  // name of the backend that reads the file; "" = the one that can
  std::vector<OtherValue> inherited{};  // what the file says that names this one
};

Request parse(std::vector<std::string> args) {
  Request request;
  request.partial = std::erase(args, "--partial") > 0;
  if (args.empty() || args[0].starts_with("-") || args[0].find('=') != std::string::npos) {
    throw Refused(kExitUsage,
                  "no file was given; usage: yoke config import [--partial] FILE [KEY=VALUE ...]");
  }
  if (!std::filesystem::is_regular_file(args[0]))
    throw Refused(kExitUsage, args[0] + " is not a file");
  request.file = args[0];
  request.overrides.assign(args.begin() + 1, args.end());
  for (const std::string& override : request.overrides)
    if (override.starts_with(kChooses)) request.backend = override.substr(kChooses.size());
  return request;
}

// What a backend says about a run, and the numbers of the run that it depends on.
struct Answer {
  PlanResult report;
  int32_t ranks = 1;
  int64_t global_batch = 0;
};

// Lets the backend plan a small model, on as many ranks as the product of the degrees. other: what
// the file says, as far as it is known. Variables are ignored, because the result depends on the
// file and the command line alone.
Answer ask(const std::vector<std::string>& overrides, const std::vector<OtherValue>& other) {
  const LoadedConfig config = load_config(std::nullopt, overrides, {}, backend_names, other);
  const RunConfig& run = config.run;
  const LoadedBackend backend =
      load_backend(find_backend(run.parallel_backend, search_dirs(SearchSettings::current())));
  const OptionList options = check_options(run.backend_options,
                                           {backend.name(), "backend '" + backend.name() + "'"},
                                           option_infos(backend.description()));
  Answer answer;
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

bool is_given(const Request& request, const std::string& key) {
  return std::any_of(request.overrides.begin(), request.overrides.end(), [&](const auto& o) {
    return o.starts_with(key + "=");
  });
}
// Returns true if the user names the whole model; dimensions alone change that of the import.
bool gives_model(const Request& request) {
  return is_given(request, "model.preset") || is_given(request, "model.from") ||
         is_given(request, "model.config");
}
bool is_inherited(const Request& request, const std::string& key) {
  return std::any_of(request.inherited.begin(), request.inherited.end(), [&](const auto& v) {
    return v.key == key;
  });
}

// Returns the overrides under which a reader plans: its file, the overrides of the user, and a
// small model without data unless the user gives others.
std::vector<std::string> overrides_of(const Request& request, const ConfigReader& reader) {
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
std::string why_foreign(const Request& request, const ConfigReader& reader) {
  try {
    check_accepted(reader, ask(overrides_of(request, reader), request.inherited).report);
    return "";
  } catch (const Refused& e) {
    return e.what();
  }
}

// Returns the only reader that finds keys of its program in the file.
ConfigReader choose_by_content(const Request& request, const std::vector<ConfigReader>& readers) {
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
ConfigReader choose_reader(const Request& request) {
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

// What a backend says about a file.
struct Imported {
  Request request;
  std::string backend;
  // The run that it has planned: keys given beside the file, and what the file says.
  std::vector<std::string> overrides;
  std::vector<OtherValue> other{};
  Answer answer;
};

// The file determines the degrees, and thus the number of ranks. Both are known only after a first
// plan, so the backend plans twice.
Imported ask_twice(const Request& request, const ConfigReader& reader) {
  Imported imported;
  imported.request = request;
  imported.backend = reader.backend;
  imported.overrides = overrides_of(request, reader);
  imported.other = request.inherited;
  const Answer first = ask(imported.overrides, imported.other);
  for (const PlanRemark& r : first.report.notes) {
    const std::optional<OtherValue> value = value_of(r);
    if (!value || is_inherited(request, value->key)) continue;
    // The choice of the backend and of the file has been made.
    if (value->key == "parallel_backend" || value->key.starts_with(reader.backend + ".")) continue;
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
  const Request& request = imported.request;
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

// Returns whether a remark is about a key of the file. The others are about the run for which the
// backend plans, such as a small model whose heads no tp_degree of the file divides.
bool is_of_file(const Request& request, const PlanRemark& remark) {
  return remark.key.starts_with(request.file + ":");
}

// Imports one file.
Imported import_file(const Request& request) {
  const ConfigReader reader = choose_reader(request);
  Imported imported = ask_twice(request, reader);
  check_accepted(reader, imported.answer.report);
  refuse_lines_of_model(imported);
  return imported;
}

// If a line of the report names a file of another backend, takes that line from the report and
// returns the request to import that file, too: a config of Accelerate names one of DeepSpeed.
std::optional<Request> take_named_file(Imported& imported) {
  std::vector<PlanRemark>& notes = imported.answer.report.notes;
  for (const ConfigReader& reader : config_readers("")) {
    const std::string start = reader.backend + "." + reader.option + " = ";
    const auto at = std::find_if(notes.begin(), notes.end(), [&](const PlanRemark& r) {
      return reader.backend != imported.backend && r.allowed.starts_with(start);
    });
    if (at == notes.end()) continue;
    Request named = imported.request;
    named.file = at->allowed.substr(start.size() + 1, at->allowed.size() - start.size() - 2);
    if (!std::filesystem::is_regular_file(named.file))
      throw Refused(kExitUsage, at->key + " = " + at->given + ": there is no such file");
    at->allowed = "# imported below";
    named.backend = reader.backend;
    for (const PlanRemark& r : notes) {
      const std::optional<OtherValue> value = value_of(r);
      if (value && value->key != "parallel_backend" && is_of_file(imported.request, r))
        named.inherited.push_back(*value);
    }
    return named;
  }
  return std::nullopt;
}

// Returns the keys of the file that cannot be honoured, with the reasons.
std::vector<std::string> refused_keys(const Request& request, const PlanResult& report) {
  std::vector<std::string> texts;
  for (const PlanRemark& r : report.refusals) {
    // A refusal of a key of the run is about the file only if the file that names it sets the key.
    if (is_of_file(request, r) || is_inherited(request, r.key)) texts.push_back(remark_text(r));
  }
  return texts;
}

// Throws Refused if the file has keys that cannot be honoured, because a run without them would not
// be the one that the file describes.
void check_complete(const Request& request, const std::vector<std::string>& refused) {
  if (refused.empty() || request.partial) return;
  std::string text = request.file + " has " +
                     (refused.size() == 1 ? "a key" : std::to_string(refused.size()) + " keys") +
                     " that cannot be honoured, so no run file is written; change the file, or "
                     "import the rest of it with --partial";
  for (const std::string& reason : refused) text += "\n  " + reason;
  throw Refused(kExitUsage, text);
}

// Returns a text of the file for a comment: a line break in it must not begin a line of the run
// file.
std::string in_one_line(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7f) {
      out += c;
    } else {
      out += c == '\n' ? "\\n" : string_printf("\\x%02x", byte);
    }
  }
  return out;
}

void print_comment(const std::string& text) {
  std::printf("# %s\n", in_one_line(text).c_str());
}

// Prints what a file means. printed: the lines that were printed for other files.
void print(const Request& request, const Answer& answer, std::set<std::string>& printed) {
  const PlanResult& report = answer.report;
  const std::string batch = "train.global_batch", micro_batch = "train.micro_batch";
  bool has_batch = is_given(request, batch) || is_inherited(request, batch),
       has_micro_batch = false;
  for (const PlanRemark& r : report.notes) {
    const std::optional<OtherValue> value = value_of(r);
    if (!value || !is_of_file(request, r)) continue;
    has_batch = has_batch || value->key == batch;
    has_micro_batch = has_micro_batch || value->key == micro_batch;
    // Some lines are printed by print_overrides(), for the file that names this one, or for another
    // key. Every key of the file is still named.
    const std::string meaning = r.key + " = " + r.given + " means " + r.allowed;
    if (is_given(request, value->key)) {
      print_comment(meaning + "; the command line decides");
    } else if (is_inherited(request, value->key) || !printed.insert(r.allowed).second) {
      print_comment(meaning);
    } else {
      std::printf("%-48s # %s\n",
                  in_one_line(r.allowed).c_str(),
                  in_one_line(r.key + " = " + r.given).c_str());
    }
  }
  // A number of micro-batches is a micro-batch of this global batch.
  if (has_micro_batch && !has_batch) {
    std::printf("%-48s # default; the file determines no batch\n",
                concat(batch, " = ", answer.global_batch).c_str());
  }
  for (const PlanRemark& r : report.notes) {
    if (!is_of_file(request, r)) continue;
    if (r.allowed.empty()) print_comment(remark_text(r));
    if (r.allowed.starts_with("# "))
      print_comment(r.key + " = " + r.given + ": " + r.allowed.substr(2));
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

// A file of DeepSpeed may give the batch of a rank, but never says how many ranks there are.
void note_single_rank(const Imported& part) {
  const auto& notes = part.answer.report.notes;
  const bool of_rank = std::any_of(notes.begin(), notes.end(), [](const PlanRemark& r) {
    const std::optional<OtherValue> value = value_of(r);
    return value && value->key == "train.micro_batch";
  });
  const bool counted =
      part.answer.ranks > 1 ||
      std::any_of(std::begin(Degrees::kKeys), std::end(Degrees::kKeys), [&](std::string_view key) {
        return is_given(part.request, std::string(key)) ||
               is_inherited(part.request, std::string(key));
      });
  if (!of_rank || counted) return;
  const std::string text =
      concat("yoke: note: ",
             part.request.file,
             " does not say how many ranks there are, so it is imported for one, with "
             "train.global_batch = ",
             part.answer.global_batch,
             "; for two ranks, add dp_shards=2\n");
  std::fputs(text.c_str(), stderr);
}

}  // namespace

int import_config(const std::vector<std::string>& args) {
  const Request request = parse(args);
  try {
    std::vector<Imported> parts{import_file(request)};
    while (const auto named = take_named_file(parts.back())) parts.push_back(import_file(*named));
    std::vector<std::string> refused;
    for (const Imported& part : parts) {
      for (const std::string& text : refused_keys(part.request, part.answer.report))
        refused.push_back(text);
    }
    check_complete(request, refused);
    std::set<std::string> printed;
    for (const Imported& part : parts) {
      print_comment(part.request.file + ", as " + part.backend + " reads it; for " +
                    std::to_string(part.answer.ranks) + " rank(s)");
      print(part.request, part.answer, printed);
    }
    print_comment(
        "to add a key, write a line such as train.steps = 1000; TOML refuses a table [train] "
        "beside it");
    for (const std::string& text : refused) print_comment("refused: " + text);
    print_overrides(request);
    note_single_rank(parts.back());
    return kExitOk;
  } catch (const ConfigError& e) {
    throw Refused(kExitUsage, e.what());
  } catch (const Refused&) {
    throw;
  } catch (const Error& e) {
    // The model of the command line is the only argument that is checked outside of load_config().
    throw Refused(e.code() == YOKE_INVALID_ARGUMENT ? kExitUsage : kExitPlugin, e.what());
  }
}

}  // namespace yoke
