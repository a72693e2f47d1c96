// Reads a run: command line over YOKE_* variables over the run file over defaults. No LibTorch.
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

// Every fault of a configuration at once. what() is one text for the user, a line per fault.
class ConfigError : public Error {
 public:
  ConfigError(const std::string& subject,
              std::vector<std::string> faults,
              const RunConfig& sound_part = {});
  const std::vector<std::string>& faults() const { return faults_; }
  // What could be read all the same; keys at fault are as if not given.
  const RunConfig& sound_part() const { return sound_part_; }

 private:
  std::vector<std::string> faults_;
  RunConfig sound_part_;
};

// One key of the schema or one option of a backend, and who set it.
struct Resolved {
  std::string key;     // "train.steps"
  std::string value;   // as written in a run file, e.g. "300" or "\"adamw\""; "" = unset
  std::string origin;  // "configs/novels.toml:12", "command line", "YOKE_TRAIN_STEPS", "default"
};

struct LoadedConfig {
  RunConfig run;
  std::vector<Resolved> values;  // all keys in schema order, then the given options of backends
};

// Adds a value behind the last one of its table, else at the end.
void add_value(std::vector<Resolved>& values, const Resolved& value);

using Environment = std::map<std::string, std::string>;

// Names of the backends that can be found, given `backend_path`. Called once.
using ListBackends =
    std::function<std::vector<std::string>(const std::vector<std::string>& backend_path)>;

// Reads and checks the run file `path` with `overrides` ("key=value"). Without a path, the overrides
// and the variables are the whole configuration. Only the YOKE_* variables of `environment` are
// used. Does not look for the backend or the data. Throws ConfigError.
LoadedConfig load_config(const std::optional<std::string>& path,
                         const std::vector<std::string>& overrides,
                         const Environment& environment,
                         const ListBackends& list_backends);

// The variables of this process.
Environment process_environment();

// "train.steps" -> "YOKE_TRAIN_STEPS"; "" for keys without a variable (backend_path, because
// YOKE_BACKEND_PATH is a part of the search of its own).
std::string variable_name(const std::string& key);

// The whole run as a run file: loading it again gives the same. Unset keys are left out.
std::string to_toml(const LoadedConfig& config);
// The same with who set each value as a comment.
std::string to_toml_with_origins(const LoadedConfig& config);
// {"train.steps": {"value": 300, "origin": "configs/novels.toml:12"}, ...}; an unset value is null.
std::string origins_json(const LoadedConfig& config);
// Hash of all that must be equal to continue a run: everything except layout, micro_batch, backend
// and its options, device, worker, run.dir, checkpoint.*, eval.*, metrics.* and comm.*.
std::string resume_digest(const LoadedConfig& config);

}  // namespace yoke
