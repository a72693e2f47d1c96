#include "core/worker/import_config.hpp"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <set>
#include <string_view>

#include "core/base/exit_code.hpp"
#include "core/config/toml_file.hpp"
#include "core/worker/config_readers.hpp"
#include "core/worker/import_file.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

ImportRequest parse(std::vector<std::string> args) {
  ImportRequest request;
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

// If a line of the report names a file of another backend, takes that line from the report and
// returns the request to import that file, too: a config of Accelerate names one of DeepSpeed.
std::optional<ImportRequest> take_named_file(Imported& imported) {
  std::vector<PlanRemark>& notes = imported.answer.report.notes;
  for (const ConfigReader& reader : config_readers("")) {
    const std::string start = reader.backend + "." + reader.option + " = ";
    const auto at = std::find_if(notes.begin(), notes.end(), [&](const PlanRemark& r) {
      return reader.backend != imported.backend && r.allowed.starts_with(start);
    });
    if (at == notes.end()) continue;
    ImportRequest named = imported.request;
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
std::vector<std::string> refused_keys(const ImportRequest& request, const PlanResult& report) {
  std::vector<std::string> texts;
  for (const PlanRemark& r : report.refusals) {
    // A refusal of a key of the run is about the file only if the file that names it sets the key.
    if (is_of_file(request, r) || is_inherited(request, r.key)) texts.push_back(remark_text(r));
  }
  return texts;
}

// Throws Refused if the file has keys that cannot be honoured, because a run without them would not
// be the one that the file describes.
void check_complete(const ImportRequest& request, const std::vector<std::string>& refused) {
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
void print(const ImportRequest& request,
           const ImportAnswer& answer,
           std::set<std::string>& printed) {
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
    // What a file says about its data does not hold for those of the command line.
    const bool other_data = describes_data(value->key) && is_given(request, "data.path");
    if (is_given(request, value->key) || other_data) {
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
void print_overrides(const ImportRequest& request) {
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
  const ImportRequest request = parse(args);
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
