// The model families that Yoke itself provides.
#pragma once

#include <map>
#include <string>

#include "core/config/run_config.hpp"
#include "yoke/model.hpp"

namespace yoke {

// Returns the family that this configuration selects: that of model.family, or of the config.json
// in model.from or model.config. Its functions report what is wrong with the configuration.
Family builtin_family(const ModelConfig& model, const PrecisionConfig& precision = {});

// Returns builtin_family() under each name that model.family may have: "auto", "llama" and so on.
std::map<std::string, Family> builtin_families(const ModelConfig& model,
                                               const PrecisionConfig& precision);

// Returns the properties of a model of these families. seq_len: length of the sequences of this
// run. Throws Error(INVALID_ARGUMENT) if the model has fewer learned positions, and what
// model_dims() throws.
ModelInfo model_info(const ModelConfig& model, int64_t seq_len);

}  // namespace yoke
