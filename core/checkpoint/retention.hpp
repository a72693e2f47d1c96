// The names inside a folder of checkpoints.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace yoke {

std::string step_name(int64_t step);                  // "step-00001000"
std::string temporary_name(const std::string& name);  // ".step-00001000.tmp-": a suffix follows
std::vector<int64_t> steps_in(const std::string& folder);  // committed ones, newest first
// Removes what dead saves left. The caller holds the folder's lock, so no save is alive.
void sweep_temporaries(const std::string& folder);

}  // namespace yoke
