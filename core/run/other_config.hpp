// Checks a run against a config of another program that a backend reads, such as a ds_config.json.
// No LibTorch.
#pragma once

#include <string>
#include <vector>

#include "core/backend/loaded_backend.hpp"
#include "core/config/run_config.hpp"

namespace yoke {

// A backend compares such a config with its plan. The plan has no learning-rate schedule and no
// precision.product, because the host carries out both; for these the backend reports the lines of
// a run file that would have the same effect. Returns one text for each such line whose value
// differs from the run's. The other keys of fp8 are not compared, and keys that the backend itself
// refuses are left out.
std::vector<std::string> disagreements(const PlanResult& report, const RunConfig& run);

}  // namespace yoke
