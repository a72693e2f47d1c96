// The lines of a run file that mean the same as a YAML file of nanotron.
#pragma once

#include <vector>

#include "plugins/nanotron_compat/config/config.hpp"
#include "sdk/compat/run_lines.hpp"

namespace yoke::nanotron_compat {

// Returns the lines that a file implies about everything but the engine and the degrees; none
// without a file. Keys that its silence decides are included. Combinations that cannot be
// translated are added to `messages`.
std::vector<compat::RunLine> run_lines(const Config& config, PlanMessages& messages);

}  // namespace yoke::nanotron_compat
