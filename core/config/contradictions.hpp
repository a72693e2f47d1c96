// Errors that no single key shows: values that do not fit together. No LibTorch.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/config/run_config.hpp"

namespace yoke {

// A configuration as these checks see it.
struct ConfigView {
  const RunConfig& run;
  // Returns a key with its value and origin for a message: `train.steps = 3 (run.toml:4)`.
  std::function<std::string(const std::string& key)> cite;
  // Returns false if an error of this key alone has been reported. Its value is not the user's
  // then, and a check that involves the key is skipped.
  std::function<bool(const std::string& key)> sound;
};

// Returns one text per contradiction.
std::vector<std::string> contradictions(const ConfigView& view);

}  // namespace yoke
