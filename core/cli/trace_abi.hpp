// --trace-abi of `yoke train`.
#pragma once

#include <string>

#include "core/cli/train_request.hpp"
#include "core/config/run_config.hpp"

namespace yoke {

// Checks the file of --trace-abi; "" = the flag was not given. Throws Stop.
void check_trace_abi(const std::string& file);

// Puts the backend that traces calls on top of the one that `run` chooses, by overrides of the run
// file. Does nothing without --trace-abi.
void add_tracer(Request& request, const RunConfig& run);

}  // namespace yoke
