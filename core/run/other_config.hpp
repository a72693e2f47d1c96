// Checks the run against a config of another program that a backend reads, such as a ds_config.json.
// No LibTorch.
#pragma once

#include <string>
#include <vector>

#include "core/backend/loaded_backend.hpp"
#include "core/config/run_config.hpp"

namespace yoke {

// A backend compares what its plan has, such as the batch. It is not told the learning-rate
// schedule, which the host carries out, but reports the equivalent lines of a run file as notes.
// Returns one text for each such line that differs from the run, unless the backend has refused its
// key itself.
std::vector<std::string> schedule_faults(const PlanResult& report, const RunConfig& run);

}  // namespace yoke
