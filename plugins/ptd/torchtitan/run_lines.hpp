// Translates a job file of torchtitan into lines of a run file. These functions change nothing but
// their arguments.
#pragma once

#include <vector>

#include "plugins/ptd/options.hpp"
#include "plugins/ptd/torchtitan/job_file.hpp"
#include "sdk/compat/run_lines.hpp"
#include "yoke/backend.hpp"

namespace yoke::ptd::torchtitan {

// Sets each unset degree of the plan to the value in the file.
void fill_degrees(const JobFile& file, YokePlan& plan);

// Returns the lines of a run file that have the effect of the file on as many ranks as the plan
// has. The degrees of the plan must be set. Adds refusals and notes to `messages`.
std::vector<compat::RunLine> run_lines(const JobFile& file,
                                       const YokePlan& plan,
                                       PlanMessages& messages);

// Returns the options of [ptd]: those of the run file, and for others those of the job file, if
// there is one.
PtdOptions options_of(const Options& options, const YokePlan& plan);

}  // namespace yoke::ptd::torchtitan
