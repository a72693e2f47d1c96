// How nanotron divides the layers of a model between the ranks of a pipeline. No LibTorch.
#pragma once

#include "plugins/nanotron_compat/settings.hpp"
#include "sdk/mesh/schedule/schedule.hpp"
#include "yoke/plan_report.hpp"

namespace yoke::nanotron_compat {

// Returns the pipeline of `pp` ranks, of which each has one stage. Refusals are added to
// `messages`; the result then has no stages.
mesh::Pipeline pipeline_of(const YokeModelSummary& model,
                           const Settings& settings,
                           int pp,
                           PlanMessages& messages);

}  // namespace yoke::nanotron_compat
