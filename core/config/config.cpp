// Loading runs in this order:
//   1. The layers are read into one list of assignments (layers.hpp).
//   2. find_sections() decides which table names are backends. It needs two keys, backend_path and
//      parallel_backend, before anything else is checked.
//   3. take() checks every assignment of the list. Syntax, duplicates and unknown keys are checked
//      in all layers, types and ranges only for the assignment that takes effect.
//   4. If the file could be read, required keys and contradictions between keys are checked.
//
// No step stops at the first error. Users fix a run file in one edit rather than one error at a
// time, so each step continues with what is valid and errors are collected until the end.
#include "core/config/config.hpp"

#include <algorithm>
#include <filesystem>
#include <set>

#include "core/config/contradictions.hpp"
#include "core/config/families.hpp"
#include "core/config/layers.hpp"
#include "core/config/located_path.hpp"
#include "core/config/options.hpp"
#include "core/config/schema.hpp"
#include "core/config/synonyms.hpp"
#include "core/config/toml_file.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

std::string fault_text(const std::string& subject, const std::vector<std::string>& faults) {
  if (faults.size() == 1) return faults[0];
  std::string text = concat(subject, ": ", faults.size(), " errors");
  for (const std::string& fault : faults) text += "\n  " + fault;
  return text;
}

// Returns the name of the table with a backend's options: the backend's name, or the stem of its
// file name.
std::string section_name(const std::string& backend) {
  return backend.starts_with('/') ? std::filesystem::path(backend).stem().string() : backend;
}

std::string quote(const std::string& text) {
  return "'" + text + "'";
}

class Loader {
 public:
  Loader(const std::optional<std::string>& path, const ListBackends& list_backends)
      : path_(path), list_backends_(list_backends) {}

  LoadedConfig load(const std::vector<std::string>& overrides,
                    const Environment& environment,
                    const std::vector<OtherValue>& other) {
    for (const OtherValue& value : other)
      settings_.all.push_back({value.key, Setting::kOtherConfig, value.origin, {}, value.text});
    if (path_) add_file(*path_, settings_);
    add_command_line(overrides, settings_);
    find_sections(environment);
    add_variables(environment, sections_, settings_);
    faults_ = settings_.faults;
    for (const Setting& setting : ordered()) take(setting);
    for (const Setting& table : settings_.empty_tables) check_empty_table(table);
    // If the file could not be parsed, we cannot tell which required keys it lacks.
    if (settings_.file_is_known) {
      set_dependent_defaults();
      check_required();
      find_contradictions();
    }
    if (!faults_.empty())
      throw ConfigError(path_.value_or("the command line and the variables"), faults_, run_);
    return result();
  }

 private:
  // Finds the tables that hold options: those with the name of a backend, and [model] if the model
  // family is not built in. Which backends exist depends on backend_path, so that key is read
  // first.
  void find_sections(const Environment& environment) {
    const Key& path_key = *find_key("backend_path");
    if (const Setting* path = settings_.winner("backend_path")) {
      const Value value = value_of(path_key, *path);
      if (check_key(path_key, value).empty()) write_key(path_key, value, run_);
    }
    known_ = list_backends_(run_.backend_path);
    std::copy_if(
        known_.begin(), known_.end(), std::back_inserter(sections_), [](const std::string& name) {
          return !is_table(name);
        });
    // The chosen backend may have a table even if it is not found. The missing backend is reported
    // later, by the search, which lists the folders it tried.
    Settings chosen = settings_;
    add_variables(environment, {}, chosen);
    if (const Setting* backend = chosen.winner("parallel_backend"))
      add_section_of(value_of(*find_key("parallel_backend"), *backend));
    // An option `inner` chooses the backend below.
    for (const Setting& setting : chosen.all) {
      if (setting.key.ends_with(".inner"))
        add_section_of(setting.loose() ? Value{setting.text} : setting.value);
    }
    if (const Setting* family = chosen.winner("model.family")) {
      const Value value = value_of(*find_key("model.family"), *family);
      const auto* const name = std::get_if<std::string>(&value.data);
      own_model_ = name != nullptr && !is_builtin_family(*name);
    }
    if (own_model_) sections_.push_back("model");
  }

  // Adds the table of a backend that is given by its name or path.
  void add_section_of(const Value& backend) {
    const auto* name = std::get_if<std::string>(&backend.data);
    if (name != nullptr && !name->empty() && !is_table(section_name(*name)))
      sections_.push_back(section_name(*name));
  }

  // Returns the key of the schema, or NULL. If the model family is not built in, only the keys of
  // any family are keys of the table [model]; all other names there are options that the family
  // declares.
  const Key* schema_key(const std::string& name) const {
    constexpr std::string_view kModel = "model.";
    const bool declared_by_family =
        own_model_ && name.starts_with(kModel) && !is_key_of_any_family(name.substr(kModel.size()));
    return declared_by_family ? nullptr : find_key(name);
  }

  std::vector<Setting> ordered() const {
    std::vector<Setting> all = settings_.all;
    std::stable_sort(all.begin(), all.end(), [](const Setting& a, const Setting& b) {
      return a.layer < b.layer;
    });
    return all;
  }

  static Value value_of(const Key& key, const Setting& setting) {
    return setting.loose() ? loose_value(key, setting.text) : setting.value;
  }

  // Returns a path, or a list of paths, of the run file as seen from the current folder.
  Value located(Value value, const Setting& setting) {
    if (auto* path = std::get_if<std::string>(&value.data)) {
      LocatedPath found = locate(setting.folder, *path);
      if (!found.note.empty()) notes_.push_back(setting.key + ": " + found.note);
      *path = std::move(found.path);
    } else if (auto* list = std::get_if<std::vector<Value>>(&value.data)) {
      for (Value& entry : *list) entry = located(std::move(entry), setting);
    }
    return value;
  }

  bool is_section(const std::string& name) const {
    return std::find(sections_.begin(), sections_.end(), name) != sections_.end();
  }

  void fault(const Setting& setting, const std::string& what) {
    faults_.push_back(setting.origin + ": " + what);
  }

  // Checks one assignment and, if it is valid and no higher layer overrides it, stores it.
  void take(const Setting& setting) {
    // The same key in two layers is an override; twice in one layer, it is an error.
    const auto [first, fresh] = origins_.insert({{setting.layer, setting.key}, setting.origin});
    if (!fresh) {
      fault(
          setting,
          setting.key + " is given twice" + (setting.loose() ? "" : "; first at " + first->second));
    } else if (const Key* key = schema_key(setting.key)) {
      take_key(*key, setting);
    } else if (is_section(setting.table()) && setting.key != setting.table()) {
      take_option(setting);
    } else {
      refuse_unknown(setting);
    }
  }

  // Checks only the assignment of the highest layer: the command line may replace a wrong value.
  void take_key(const Key& key, const Setting& setting) {
    const Setting* winner = settings_.winner(setting.key);
    if (winner->layer != setting.layer) return;
    const Value value =
        key.is(kPath) ? located(value_of(key, setting), setting) : value_of(key, setting);
    const std::string reason = check_key(key, value);
    origin_of_[setting.key] = setting.origin;
    if (reason.empty()) {
      write_key(key, value, run_);
    } else {
      unsound_.insert(setting.key);
      fault(setting, setting.key + " = " + to_text(value) + ": " + reason);
    }
  }

  // Stores an option of a backend or a family. Its declaration is not known yet, because the
  // backend is not loaded, so only the kind of the value is checked here. check_options() does the
  // rest.
  void take_option(const Setting& setting) {
    if (settings_.winner(setting.key)->layer != setting.layer) return;
    const std::string backend = setting.table();
    const std::string key = setting.key.substr(backend.size() + 1);
    const BackendOption option =
        setting.loose()
            ? loose_option(backend, key, setting.text, setting.origin)
            : BackendOption{
                  backend, key, setting.value, setting.origin, std::nullopt, setting.folder};
    if (!is_scalar(option.value)) {
      fault(setting,
            setting.key + ": expected an integer, a float, a boolean or a string, got " +
                kind_name(option.value));
      return;
    }
    const auto* text = std::get_if<std::string>(&option.value.data);
    if (!is_clean_text(text != nullptr ? *text : written(option)))
      return fault(setting, setting.key + ": not valid UTF-8 text");
    options_[setting.key] = option;
  }

  // Reports an assignment that belongs to no key and no option, with the most likely correction.
  void refuse_unknown(const Setting& setting) {
    const std::string table = setting.table();
    if (is_table(setting.key)) {
      return fault(setting,
                   quote(setting.key) + " is a table; write " + setting.key +
                       ".KEY = " + to_text(setting.value));
    }
    if (setting.key == table || is_table(table) || find_key(table) != nullptr) {
      return fault(setting, "unknown key " + quote(setting.key) + suggestion(setting.key));
    }
    // Reports a table once per layer, however many keys it has.
    if (unknown_tables_.insert({setting.layer, table}).second) {
      fault(setting, "unknown table " + quote(table) + table_suggestion(table));
    }
  }

  // A header without keys assigns nothing, but may still be misspelt: [metric] for [metrics].
  void check_empty_table(const Setting& header) {
    const std::string& name = header.key;
    if (is_table(name) || is_section(name)) return;
    if (name != header.table() && (is_table(header.table()) || is_section(header.table()))) {
      return fault(header,
                   "unknown table " + quote(name) + "; " + header.table() + " has no subtables");
    }
    if (unknown_tables_.insert({Setting::kFile, header.table()}).second) {
      fault(header, "unknown table " + quote(name) + table_suggestion(name));
    }
  }

  // Suggests the same key in a different table, the key for another system's name of it, or else a
  // key with a similar name.
  static std::string suggestion(const std::string& key) {
    const std::string above = key.substr(0, key.rfind('.'));
    if (above != key && find_key(above) != nullptr) return "; " + quote(above) + " is not a table";
    const std::string last = "." + key.substr(key.rfind('.') + 1);
    for (const std::string& name : key_names()) {
      if (("." + name).ends_with(last)) return "; did you mean '" + name + "'?";
    }
    if (const std::string here = synonym(key); !here.empty()) return "; " + here;
    const std::string text = did_you_mean(key, key_names());
    if (!text.empty()) return text;
    const bool in_table = key.find('.') != std::string::npos;
    return "; `yoke config schema` lists all keys" +
           (in_table ? "" : "; an option of a backend is written with its name, BACKEND." + key);
  }

  std::string table_suggestion(const std::string& table) const {
    std::vector<std::string> names = sections_;
    for (const Key& key : schema()) {
      const size_t dot = key.name.find('.');
      if (dot != std::string_view::npos) names.emplace_back(key.name.substr(0, dot));
    }
    return "; it is neither a table of the run file nor a backend (found: " +
           (known_.empty() ? "none" : join(known_)) + ")" + did_you_mean(table, names);
  }

  // Returns the default backend of the build if it is installed, else "".
  std::string installed_default() const {
    const bool found =
        std::find(known_.begin(), known_.end(), YOKE_DEFAULT_BACKEND) != known_.end();
    return found ? YOKE_DEFAULT_BACKEND : "";
  }

  // With evaluation data of its own, the training data is not held out unless the user asks for it,
  // which is then a contradiction.
  void set_dependent_defaults() {
    if (!run_.eval.path.empty() && origin_of_.count("data.holdout") == 0) run_.data.holdout = 0;
    // The default backend of the build is used if it is installed.
    const std::string backend = installed_default();
    if (!backend.empty() && origin_of_.count("parallel_backend") == 0) {
      run_.parallel_backend = backend;
      notes_.push_back("parallel_backend is not set, so " + backend + " is used");
    }
  }

  void check_required() {
    for (const Key& key : schema()) {
      const std::string name(key.name);
      const std::optional<Value> value = read_key(key, run_);
      if (!key.is(kRequired) || unsound_.count(name) != 0 || value != Value{std::string()})
        continue;
      if (own_model_ && name == "data.path") continue;  // the family may provide its own data
      unsound_.insert(name);
      const bool backend = name == "parallel_backend";
      std::string example = backend ? installed_default() : "FILE";
      if (example.empty()) example = known_.empty() ? "NAME" : known_[0];
      std::string text = name + " is not set";
      if (backend)
        text += known_.empty() ? "; no backend was found" : "; backends found: " + join(known_);
      text += path_ ? "; write " + name + " = " + toml_string(example) + " in " + *path_ + ", or "
                    : "; give ";
      faults_.push_back(text + name + "=" + example + " on the command line");
    }
  }

  void find_contradictions() {
    const auto cite = [this](const std::string& name) {
      const std::optional<Value> value = read_key(*find_key(name), run_);
      return name + " = " + (value ? to_text(*value) : "unset") + " (" + origin(name) + ")";
    };
    const auto sound = [this](const std::string& name) { return unsound_.count(name) == 0; };
    for (std::string& text : contradictions({run_, cite, sound}))
      faults_.push_back(std::move(text));
  }

  std::string origin(const std::string& name) const {
    const auto found = origin_of_.find(name);
    return found == origin_of_.end() ? "default" : found->second;
  }

  // Lists every key with its origin, and the options after the keys of their table.
  LoadedConfig result() {
    LoadedConfig config{std::move(run_), {}, std::move(notes_)};
    for (const Key& key : schema()) {
      const std::string name(key.name);
      if (schema_key(name) == nullptr) continue;
      const std::optional<Value> value = read_key(key, config.run);
      config.values.push_back({name, value ? to_text(*value) : "", origin(name)});
    }
    for (const auto& [name, option] : options_) {
      config.run.backend_options.push_back(option);
      add_value(config.values, {name, written(option), option.origin});
    }
    return config;
  }

  const std::optional<std::string> path_;
  const ListBackends& list_backends_;
  Settings settings_;
  std::vector<std::string> known_;     // backends that were found
  std::vector<std::string> sections_;  // tables that hold options of a backend or of the family
  bool own_model_ = false;             // true if the model family is not built in
  // Origin of the first assignment, by layer and key.
  std::map<std::pair<int, std::string>, std::string> origins_;
  std::map<std::string, std::string> origin_of_;          // origin of the winning value, by key
  std::set<std::pair<int, std::string>> unknown_tables_;  // reported tables, by layer and name
  std::set<std::string> unsound_;                         // keys whose values are invalid
  std::map<std::string, BackendOption> options_;
  std::vector<std::string> faults_;
  std::vector<std::string> notes_;
  RunConfig run_;
};

}  // namespace

void add_value(std::vector<Resolved>& values, const Resolved& value) {
  const auto table = [](const std::string& key) { return key.substr(0, key.find('.')); };
  const auto after = std::find_if(values.rbegin(), values.rend(), [&](const Resolved& other) {
    return table(other.key) == table(value.key);
  });
  values.insert(after == values.rend() ? values.end() : after.base(), value);
}

ConfigError::ConfigError(const std::string& subject,
                         std::vector<std::string> faults,
                         const RunConfig& sound_part)
    : Error(YOKE_INVALID_ARGUMENT, fault_text(subject, faults)),
      faults_(std::move(faults)),
      sound_part_(sound_part) {}

LoadedConfig load_config(const std::optional<std::string>& path,
                         const std::vector<std::string>& overrides,
                         const Environment& environment,
                         const ListBackends& list_backends,
                         const std::vector<OtherValue>& other) {
  return Loader(path, list_backends).load(overrides, environment, other);
}

}  // namespace yoke
