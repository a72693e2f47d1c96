// Loads the configuration of a run from its layers. The command line overrides YOKE_* variables,
// which override the run file, which overrides values that a backend has read in the config of
// another program, which override the defaults. No LibTorch.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/config/run_config.hpp"
#include "yoke/error.hpp"

namespace yoke {

// All errors of a configuration at once. what() is one text for the user, with a line per error.
class ConfigError : public Error {
 public:
  ConfigError(const std::string& subject,
              std::vector<std::string> faults,
              const RunConfig& sound_part = {});
  const std::vector<std::string>& faults() const { return faults_; }
  // The configuration as far as it is valid: keys with an error have their default values.
  const RunConfig& sound_part() const { return sound_part_; }

 private:
  std::vector<std::string> faults_;
  RunConfig sound_part_;
};

// One key of the schema or one option of a backend, with its final value.
struct Resolved {
  std::string key;     // "train.steps"
  std::string value;   // text in a run file, e.g. "300" or "\"adamw\""; "" = unset
  std::string origin;  // "configs/novels.toml:12", "command line", "YOKE_TRAIN_STEPS" or "default"
};

struct LoadedConfig {
  RunConfig run;
  std::vector<Resolved> values;      // all keys in schema order, then the options that were given
  std::vector<std::string> notes{};  // sentences for the user
};

// Inserts a value after the last one of its table, or at the end if there is none. A table must not
// be split: TOML allows its header only once.
void add_value(std::vector<Resolved>& values, const Resolved& value);

// A value that a backend has read in the config of another program.
struct OtherValue {
  std::string key;     // "train.clip"
  std::string text;    // value as in a run file
  std::string origin;  // "ds.json: gradient_clipping"
};

using Environment = std::map<std::string, std::string>;  // variables by name

// Returns the names of all backends that are found, given the key `backend_path`. load_config calls
// it once.
using ListBackends =
    std::function<std::vector<std::string>(const std::vector<std::string>& backend_path)>;

// Reads and checks the run file `path` with `overrides` ("key=value"). Without a path, the
// overrides and the variables are the whole configuration. Only the YOKE_* variables of
// `environment` are used. `other` are the values of the layer above the defaults, at most one for
// each key. Does not look for the backend or the data. Throws ConfigError.
LoadedConfig load_config(const std::optional<std::string>& path,
                         const std::vector<std::string>& overrides,
                         const Environment& environment,
                         const ListBackends& list_backends,
                         const std::vector<OtherValue>& other = {});

// Returns the environment variables of this process.
Environment process_environment();

// Returns the variable that sets a key: "train.steps" -> "YOKE_TRAIN_STEPS". Returns "" for
// backend_path: YOKE_BACKEND_PATH does not replace that key, but names further folders.
std::string variable_name(const std::string& key);

// Returns the complete configuration as a run file. Loading it gives the same configuration. Unset
// keys are left out.
std::string to_toml(const LoadedConfig& config);
// Returns the values that all ranks of a run must have in common, in order: "unset" for an unset
// one, and "" as the origin of a default.
std::vector<Resolved> shared_values(const LoadedConfig& config);
// Returns the same run file with the origin of each value as a comment.
std::string to_toml_with_origins(const LoadedConfig& config);
// Returns {"train.steps": {"value": 300, "origin": "configs/novels.toml:12"}, ...}. An unset value
// is null.
std::string origins_json(const LoadedConfig& config);
// Returns a hash of the configuration without the keys marked kFree in the schema (layout,
// micro-batch, backend, device, folders, checkpoint.*, eval.*, metrics.*, comm.* and others) and
// without the options of backends. A run resumes without further questions if it is equal.
std::string resume_digest(const LoadedConfig& config);
// The same without the keys marked kTunable: runs with equal digests differ only in what may change
// when a run is resumed.
std::string fixed_digest(const LoadedConfig& config);

// How a run that is resumed differs from before, without what may change freely. Each change is a
// text such as "train.steps = 200 (100 before)".
struct ResumeChanges {
  std::vector<std::string> tunable;  // changes of keys marked kTunable
  std::vector<std::string> fixed;    // changes that make it another run
};
ResumeChanges resume_changes(const LoadedConfig& before, const LoadedConfig& now);

}  // namespace yoke
