// Variables are the difficult layer: YOKE_TRAIN_MAX_MICRO_BATCH does not show where the table ends
// and the key begins, and other programs may use the prefix YOKE_ as well. Names of keys are
// therefore compared as whole names. An option of a backend is recognised by the backend's name,
// and only a name that is close to a key is reported as a mistake.
#include "core/config/layers.hpp"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "core/config/schema.hpp"
#include "core/config/toml_file.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr std::string_view kPrefix = "YOKE_";

// Variables that our programs and scripts read, and that are not keys of a run.
constexpr std::string_view kOtherVariables[] = {"YOKE_BACKEND_PATH",
                                                "YOKE_BIN",
                                                "YOKE_DEPS",
                                                "YOKE_JOB",
                                                "YOKE_SECRET_FILE",
                                                "YOKE_SOURCE",
                                                "YOKE_TORCH_DIR",
                                                "YOKE_TORCH_LIB"};

// Returns the form of a name in a variable: "TRAIN_STEPS" for "train.steps".
std::string upper(std::string_view text) {
  std::string out;
  for (const char c : text) {
    out += c == '.' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return out;
}

std::string lower(std::string_view text) {
  std::string out;
  for (const char c : text) {
    out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

// Maps "YOKE_MINE_UNIT_BYTES" to "mine.unit_bytes", and any other variable to "". The longest
// matching backend wins, since both `a` and `a_b` may be backends.
std::string option_key(const std::string& variable, const std::vector<std::string>& backends) {
  std::string best;
  for (const std::string& backend : backends) {
    const std::string prefix = std::string(kPrefix) + upper(backend) + "_";
    const bool fits = variable.size() > prefix.size() && variable.starts_with(prefix);
    if (fits && backend.size() > best.size()) best = backend;
  }
  if (best.empty()) return "";
  return best + "." + lower(variable.substr(kPrefix.size() + best.size() + 1));
}

// If a backend has the name of a table, a key of the schema takes precedence over an option.
std::string key_of_variable(const std::string& variable, const std::vector<std::string>& backends) {
  for (const Key& key : schema()) {
    if (variable_name(std::string(key.name)) == variable) return std::string(key.name);
  }
  return option_key(variable, backends);
}

std::vector<std::string> variable_names() {
  std::vector<std::string> names;
  for (const Key& key : schema()) {
    const std::string name = variable_name(std::string(key.name));
    if (!name.empty()) names.push_back(name);
  }
  return names;
}

// Returns true if the variable starts with the name of a table, or is one edit away from a key.
bool looks_like_a_key(const std::string& variable) {
  const std::string rest = variable.substr(kPrefix.size());
  if (const size_t end = rest.find('_'); end != std::string::npos) {
    if (is_table(lower(rest.substr(0, end)))) return true;
  }
  const std::vector<std::string> names = variable_names();
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return edit_distance(variable, name) <= 1;
  });
}

bool is_other_variable(const std::string& name) {
  return std::find(std::begin(kOtherVariables), std::end(kOtherVariables), name) !=
         std::end(kOtherVariables);
}

}  // namespace

const Setting* Settings::winner(const std::string& key) const {
  const Setting* best = nullptr;
  for (const Setting& setting : all) {
    // Within a layer the later assignment wins, as users expect of a command line.
    if (setting.key == key && (best == nullptr || setting.layer >= best->layer)) best = &setting;
  }
  return best;
}

std::string variable_name(const std::string& key) {
  const Key* found = find_key(key);
  if (found != nullptr && found->is(kNoVariable)) return "";
  return std::string(kPrefix) + upper(key);
}

Environment process_environment() {
  Environment variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return variables;
}

void add_file(const std::string& path, Settings& settings) {
  const TomlFile file = parse_toml_file(path);
  if (!file.fault.empty()) {
    settings.faults.push_back(file.fault);
    settings.file_is_known = false;
  }
  // Each entry carries its line, which becomes the origin in messages.
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const auto setting = [&](const TomlEntry& entry) {
    const std::string origin = concat(path, ":", entry.line);
    return Setting{entry.dotted(), Setting::kFile, origin, entry.value, "", folder};
  };
  for (const TomlEntry& entry : file.entries) settings.all.push_back(setting(entry));
  for (const TomlEntry& entry : file.empty_tables) settings.empty_tables.push_back(setting(entry));
}

void add_variables(const Environment& environment,
                   const std::vector<std::string>& backends,
                   Settings& settings) {
  for (const auto& [name, text] : environment) {
    // An empty variable counts as unset: a job script can clear a variable, but often not remove
    // it.
    if (!name.starts_with(kPrefix) || text.empty() || is_other_variable(name)) continue;
    const std::string key = key_of_variable(name, backends);
    // A misspelt variable must not be ignored silently: the run would train with a different value.
    if (!key.empty()) {
      settings.all.push_back({key, Setting::kVariable, name, {}, text});
    } else if (looks_like_a_key(name)) {
      settings.faults.push_back(name + ": no key of the run file has this variable" +
                                did_you_mean(name, variable_names()));
    }
  }
}

void add_command_line(const std::vector<std::string>& overrides, Settings& settings) {
  for (const std::string& word : overrides) {
    const size_t equals = word.find('=');  // the value may contain '=' as well
    // Spaces around the key are dropped, since a user may paste a line of a run file in quotes.
    std::string key = word.substr(0, equals);
    key.erase(0, key.find_first_not_of(' '));
    key.erase(key.find_last_not_of(' ') + 1);
    if (equals == std::string::npos || key.empty()) {
      settings.faults.push_back("command line: '" + word +
                                "' is not of the form key=value, like train.steps=10");
      continue;
    }
    settings.all.push_back(
        {key, Setting::kCommandLine, "command line", {}, word.substr(equals + 1)});
  }
}

}  // namespace yoke
