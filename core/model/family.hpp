// Model families by name.
#pragma once

#include <map>
#include <string>

#include "core/config/run_config.hpp"
#include "yoke/model.hpp"

namespace yoke {

// The families of the house ("llama"), for this configuration.
std::map<std::string, Family> builtin_families(const ModelConfig& model);

}  // namespace yoke
