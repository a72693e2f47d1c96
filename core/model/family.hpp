// The model families that Yoke itself provides.
#pragma once

#include <map>
#include <string>

#include "core/config/run_config.hpp"
#include "yoke/model.hpp"

namespace yoke {

// Returns the built-in families by name, for this configuration. Today there is one: "llama".
std::map<std::string, Family> builtin_families(const ModelConfig& model,
                                               const PrecisionConfig& precision);

}  // namespace yoke
