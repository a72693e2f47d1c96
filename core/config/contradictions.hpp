// Finds combinations of values that contradict each other although each one is valid by itself. No
// LibTorch.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/config/run_config.hpp"

namespace yoke {

// The input of the checks: a configuration, and where its values come from.
struct ConfigView {
  const RunConfig& run;
  // Returns a key with its value and origin for a message: `train.steps = 3 (run.toml:4)`.
  std::function<std::string(const std::string& key)> cite;
  // Returns false if this key has an invalid value, which has been reported already. `run` then has
  // the default of the key, and checks that read the key are skipped.
  std::function<bool(const std::string& key)> sound;
};

// Returns one text per contradiction.
std::vector<std::string> contradictions(const ConfigView& view);

}  // namespace yoke
