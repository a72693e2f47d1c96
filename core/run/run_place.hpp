// Which folder a run writes to, and which checkpoint it starts from.
#pragma once

#include <string>

#include "core/comm/world.hpp"
#include "core/run/job.hpp"

namespace yoke {

// resume: checkpoint to start from; "" = from the initial values.
struct RunPlace {
  std::string dir;
  std::string resume;
};

// checkpoint.resume = "never": a free folder (run.dir or a numbered sibling). "auto": the newest
// run of that name goes on, if it is unfinished and its configuration is equal except layout,
// backend and metrics. A path: a free folder, starting from that checkpoint. Only looks. Throws
// Refused.
RunPlace choose_place(const Job& job);

// Rank 0 chooses for all; its refusal is everybody's. Collective.
RunPlace agree_on_place(const Job& job, World& world);

}  // namespace yoke
