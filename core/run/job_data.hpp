// What is checked about the data of a run once the model is known.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/config/run_config.hpp"
#include "core/data/data_set.hpp"

namespace yoke {

// Returns a message for every fault: ids beyond the vocabulary of the model, a text for a model
// that has a tokenizer, and too few windows for an evaluation. vocab: vocabulary of the model; 0 =
// it takes no tokens, or it is unknown because of another fault.
std::vector<std::string> data_faults(const RunConfig& run, const DataSet& data, int64_t vocab);

// Returns sentences about what a user might not expect of this data with this model.
std::vector<std::string> data_notes(const DataSet& data, int64_t vocab);

}  // namespace yoke
