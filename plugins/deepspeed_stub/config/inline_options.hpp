// The options of [deepspeed_stub] in a run file: config_file, and every key that can be given
// inline.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "plugins/deepspeed_stub/config/keys.hpp"
#include "yoke/options.hpp"

namespace yoke::deepspeed_stub {

// Returns the declarations, which live as long as the process.
const std::vector<const YokeOptionInfo*>& option_infos();

// Returns the value of a key that the user gave inline.
nlohmann::json inline_value(const Options& options, const Key& key);

}  // namespace yoke::deepspeed_stub
