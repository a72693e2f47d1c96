// The table that is printed before the first step: the settings of the run and its expected costs.
#pragma once

#include <string>
#include <vector>

#include "core/comm/world.hpp"
#include "core/run/job.hpp"

namespace yoke {

// Returns what wrap_model reported on the rank that needs the most memory. The ranks of a pipeline
// have different parts of the model; without one, all ranks report the same. Collective.
YokeWrapResult costs_of_worst_rank(const YokeWrapResult& own, const YokePlan& plan, World& world);

// Returns the lines of the table that say what is trained, and how: model, backend, precision,
// batch.
std::vector<std::string> job_table(const Job& job);

// Returns the lines of the whole table: those of job_table(), data, memory per rank,
// traffic per rank, run. costs: those of the worst rank. first_step: number of steps that the run
// has already done.
std::vector<std::string> run_table(const Job& job,
                                   const YokeWrapResult& costs,
                                   const std::string& run_dir,
                                   int64_t first_step);

}  // namespace yoke
