// The layouts in which a run is possible on a number of ranks, and what a step costs in each.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/config/run_config.hpp"
#include "core/model/family.hpp"
#include "yoke/parallel_backend.h"

namespace yoke {

using Layout = std::array<int32_t, YOKE_NUM_AXES>;  // the degrees, in the order of YOKE_PP ...

// What a step costs in one layout.
struct LayoutCosts {
  Layout degree{};
  int32_t accumulation = 1;  // micro-batches of a step on each data rank
  int32_t micro_batch = 1;   // sequences of a micro-batch
  int64_t memory = -1;       // bytes of the rank that needs the most, at its peak; -1 = unknown
  int64_t traffic = -1;      // bytes of the rank that communicates the most in a step; -1 = unknown
  bool all_traffic = true;   // false: `traffic` lacks an axis about which the backend says nothing
  double idle = 0;           // share of the ranks' time if communication takes no time
};

struct RefusedLayout {
  Layout degree{};
  std::string reason;  // the first one if there are several
};

struct Layouts {
  std::vector<LayoutCosts> possible;
  std::vector<RefusedLayout> refused;
};

// Returns every layout of world_size ranks that has the given degrees. Axes that are not in `axes`,
// a set of YOKE_AXIS_BIT, have the degree 1 unless it is given.
std::vector<Layout> layouts_of(int32_t world_size, const Degrees& given, int32_t axes);

// Plans a run in every layout of world_size ranks, along the axes that its backend declares. The
// arguments are those of make_job(). Starts no rank. A fault of the run itself is the reason why
// every layout is refused. Throws Error if the run file cannot be read or the backend cannot be
// loaded.
Layouts plan_layouts(const std::string& config_path,
                     const std::vector<std::string>& overrides,
                     int32_t world_size,
                     const std::map<std::string, Family>& families);

nlohmann::ordered_json to_json(const Layouts& layouts);

}  // namespace yoke
