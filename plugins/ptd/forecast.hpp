// The forecast of a training step: when each action of each rank runs, and how much memory exists
// then. It is computed from the lists that the executor runs. No function has side effects.
#pragma once

#include <vector>

#include "plugins/ptd/mesh.hpp"
#include "plugins/ptd/rank_plan.hpp"
#include "sdk/mesh/schedule/timeline.hpp"
#include "yoke/backend.hpp"

namespace yoke::ptd {

// The bytes that a rank keeps for the whole run.
struct KeptBytes {
  int64_t params = 0;  // master copies (shards), and permanent copies in the compute type
  // Gradient shards and, with exact sums, the second gradient buffers of tied parameters.
  int64_t grads = 0;
  int64_t optimizer = 0;  // moments
};
KeptBytes kept_bytes(const RankPlan& rank, const YokePlan& plan);

// One entry for each rank along pp.
struct Forecast {
  std::vector<RankPlan> ranks;
  std::vector<std::vector<Action>> lists;
  // Times are in the unit of work_of_blocks() for one sequence. Each of the two parts of a backward
  // takes as long as a forward, but a block without trained parameters has no gradients of weights.
  // Communication takes no time.
  Timeline timeline;

  // Returns the share of the ranks' time in which they are idle, from 0 to 1.
  double bubble() const;
  // Returns the part of bubble() that would remain with any number of micro-batches, because the
  // ranks have different amounts of work.
  double imbalance() const;
};

// Returns the forecast of a training step. plan: as for rank_plans(). Throws as
// checked_lists() does.
Forecast forecast_step(const YokeModelSummary& model,
                       const YokePlan& plan,
                       const PtdOptions& options);

// Reports the forecast of each rank to the host, which must want forecasts.
void report_forecast(const Forecast& forecast, const YokePlan& plan, PlanReport& report);

}  // namespace yoke::ptd
