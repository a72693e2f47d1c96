// The length of a run and its learning-rate schedule as lines of a run file.
#pragma once

#include "plugins/megatron_compat/config/run_lines.hpp"

namespace yoke::megatron_compat {

// Appends the lines. batch: the global batch, by which numbers of samples are divided; 0 = unknown.
void add_schedule_lines(const Config& config, int64_t batch, compat::RunLines& lines);

}  // namespace yoke::megatron_compat
