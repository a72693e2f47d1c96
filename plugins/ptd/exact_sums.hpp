// Where ptd.exact_sums can keep its promise: results that do not depend on pp_degree, the schedule
// or the cut, to the last bit. Pure.
#pragma once

#include "plugins/ptd/options.hpp"
#include "yoke/backend.hpp"

namespace yoke::ptd {

// Refuses exact sums in a plan in which some sum would depend on the pipeline. Does nothing without
// them. The degrees must be set.
void check_exact_sums(const YokeModelSummary& model,
                      const YokePlan& plan,
                      const PtdOptions& options,
                      PlanReport& report);

}  // namespace yoke::ptd
