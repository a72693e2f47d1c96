// What a run is and what it costs, before its first step.
#pragma once

#include <string>
#include <vector>

#include "core/run/job.hpp"

namespace yoke {

// Lines of a table: model, backend, precision, batch, data, memory of a rank, traffic of a rank,
// run. costs: of rank 0.
std::vector<std::string> run_table(const Job& job,
                                      const YokeWrapResult& costs,
                                      const std::string& run_dir,
                                      int64_t first_step);

}  // namespace yoke
