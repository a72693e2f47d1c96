// The lines of a run file that mean the same as a command line of Megatron.
#pragma once

#include <cstdint>
#include <vector>

#include "plugins/megatron_compat/config/config.hpp"
#include "sdk/compat/run_lines.hpp"

namespace yoke::megatron_compat {

// Returns the lines that the file of a command line implies about everything but the engine; none
// without a file. Arguments that its silence decides are included. data_ranks: their number in the
// run. Combinations that cannot be translated are added to `messages`.
std::vector<compat::RunLine> run_lines(const Config& config,
                                       int64_t data_ranks,
                                       PlanMessages& messages);

// Returns the number of data ranks.
int64_t data_ranks(const Config& config, int64_t ranks);

}  // namespace yoke::megatron_compat
