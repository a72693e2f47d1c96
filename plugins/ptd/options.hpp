// The keys of [ptd] in a run file.
#pragma once

#include <cstdint>
#include <vector>

#include "plugins/ptd/dtensor/model_on_mesh.hpp"
#include "plugins/ptd/schedule/schedule.hpp"
#include "yoke/backend.hpp"

namespace yoke::ptd {

struct PtdOptions {
  int64_t unit_bytes;
  bool reshard_after_forward;
  Accumulate accumulate;
  bool recompute;
  bool shard_over_cp;
  bool cuda_graph;
  MeshOptions mesh;

  explicit PtdOptions(const Options& options);
};

// What `describe` tells the host; the host checks types, ranges and choices.
const std::vector<const YokeOptionInfo*>& option_infos();

}  // namespace yoke::ptd
