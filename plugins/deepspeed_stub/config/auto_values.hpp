// The value "auto" of a ds_config. DeepSpeed itself does not know it: transformers' Trainer and
// Accelerate replace it before DeepSpeed reads the config. Here it means what they replace it by.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "yoke/parallel_backend.h"

namespace yoke::deepspeed_stub {

enum class AutoKind {
  kNone,   // neither program replaces "auto" at this key
  kRun,    // the run file decides
  kValue,  // auto_value()
  kSize,   // auto_size(): it depends on the model
};

AutoKind auto_kind(std::string_view path);
// Returns what a message adds to the values that are allowed at a key: " or \"auto\"", or "".
const char* or_auto(std::string_view path);
// Returns what replaces "auto" at a key of kind kValue.
nlohmann::json auto_value(std::string_view path);
// Returns what replaces "auto" at a key of kind kSize, a number of elements. hidden_size: above 0.
int64_t auto_size(std::string_view path, int64_t hidden_size);

// Returns the size of the model's hidden states, which is that of the output of its first block for
// one token; 0 if the model has no sequences or does not report this size. dtype: compute dtype of
// the run.
int64_t hidden_size(const YokeModelSummary& model, int32_t dtype);

}  // namespace yoke::deepspeed_stub
