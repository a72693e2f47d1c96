// The table that is printed before the first step: what the run is and what it costs.
#pragma once

#include <string>
#include <vector>

#include "core/run/job.hpp"

namespace yoke {

// Returns the lines of the table: model, backend, precision, batch, data, memory of a rank, traffic
// of a rank, run. costs: what the backend reported on rank 0. first_step: steps done before this
// start.
std::vector<std::string> run_table(const Job& job,
                                   const YokeWrapResult& costs,
                                   const std::string& run_dir,
                                   int64_t first_step);

}  // namespace yoke
