// The table that is printed before the first step: the settings of the run and its expected costs.
#pragma once

#include <string>
#include <vector>

#include "core/run/job.hpp"

namespace yoke {

// Returns the lines of the table: model, backend, precision, batch, data, memory per rank,
// traffic per rank, run. costs: what wrap_model reported on rank 0. first_step: number of
// steps that the run has already done.
std::vector<std::string> run_table(const Job& job,
                                   const YokeWrapResult& costs,
                                   const std::string& run_dir,
                                   int64_t first_step);

}  // namespace yoke
