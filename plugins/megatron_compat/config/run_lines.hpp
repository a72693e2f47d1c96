// The lines of a run file that mean the same as a command line of Megatron, and their comparison
// with a run.
#pragma once

#include <string>
#include <vector>

#include "plugins/megatron_compat/config/config.hpp"

namespace yoke::megatron_compat {

// A line `key = value` of a run file, and the argument that it translates. The value is written as
// in TOML.
struct RunLine {
  std::string argument, key, value;
};

// Returns the lines that the file of a command line implies about everything but the engine; none
// without a file. Arguments that its silence decides are included. ranks: number of ranks of the
// run. Combinations that cannot be translated are added to `messages`.
std::vector<RunLine> run_lines(const Config& config, int64_t ranks, PlanMessages& messages);

// Compares the lines with what `plan` has to know: the model, the batch, the optimizer and the
// precision. A line that differs from the run is refused. The host compares the rest. Sets
// plan.micro_batch if it is unset.
void check_lines(const Config& config,
                 const std::vector<RunLine>& lines,
                 const YokeModelSummary& model,
                 YokePlan& plan,
                 PlanMessages& messages);

// Returns the number of data ranks.
int64_t data_ranks(const Config& config, int64_t ranks);

}  // namespace yoke::megatron_compat
