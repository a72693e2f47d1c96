// Decides which parameters are gathered in fp8 (ptd.fp8_gather). No side effects.
#pragma once

#include "plugins/ptd/mesh.hpp"
#include "plugins/ptd/options.hpp"
#include "sdk/mesh/schedule/units.hpp"
#include "yoke/backend.hpp"

namespace yoke::ptd {

// Refuses gathers in fp8 in a plan in which no parameter can be gathered in this way. Does nothing
// without ptd.fp8_gather. The degrees must be set.
void check_fp8_gather(const YokeModelSummary& model,
                      const YokePlan& plan,
                      const PtdOptions& options,
                      PlanReport& report);

// Marks the parameters of the spec that are gathered in fp8: those that only products with one
// scale use. The model must have passed check_fp8_gather().
void choose_fp8_gathers(const YokeModelSummary& model, ModelSpec& spec);

// Returns the bytes of what the ranks compare to find the scales: the largest element of each
// parameter that is gathered in fp8.
int64_t scale_bytes(const UnitMap& map, const YokePlan& plan);

}  // namespace yoke::ptd
