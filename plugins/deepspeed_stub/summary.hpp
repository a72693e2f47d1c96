// What a run of one model does, as far as it follows from the model, the settings and the plan.
#pragma once

#include <cstdint>
#include <string>

#include "plugins/deepspeed_stub/config/settings.hpp"
#include "plugins/deepspeed_stub/layout.hpp"

namespace yoke::deepspeed_stub {

// Returns the line that rank 0 logs: the stage, the ranks, the buckets of gradients and, at stage
// 3, how many parameters stay whole.
std::string summary_line(const ModelSpec& model, const Settings& settings, int ranks);

// Returns the number of micro-batches of a rank in one step; 0 if the plan does not have the
// micro-batch yet.
int64_t micros_of(const YokePlan& plan);

// Returns the payload of a rank's collectives in one training step, without those of a few scalars:
// what YokeWrapResult has in axis_bytes for the axis of the data ranks. plan: complete, except that
// the micro-batch may be unset; the result is then 0, which means unknown.
int64_t step_traffic(const ModelSpec& model, const Settings& settings, const YokePlan& plan);

}  // namespace yoke::deepspeed_stub
