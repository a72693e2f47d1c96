// Faults that no single key shows: values that do not go together.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/config/run_config.hpp"

namespace yoke {

struct ConfigView {
  const RunConfig& run;
  std::function<std::string(const std::string& key)> cite;  // `train.steps = 3 (run.toml:4)`
  std::function<bool(const std::string& key)> sound;        // false: already reported for itself
};

// One text per contradiction, in the order of the schema.
std::vector<std::string> contradictions(const ConfigView& view);

}  // namespace yoke
