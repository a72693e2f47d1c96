// The length of a run and its learning-rate schedule as lines of a run file.
#pragma once

#include "plugins/nanotron_compat/config/config.hpp"
#include "sdk/compat/run_lines.hpp"

namespace yoke::nanotron_compat {

// Appends the lines.
void add_schedule_lines(const Config& config, compat::RunLines& lines);

}  // namespace yoke::nanotron_compat
