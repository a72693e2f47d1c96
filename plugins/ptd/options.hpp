// The keys of [ptd] in a run file.
#pragma once

#include <cstdint>
#include <vector>

#include "plugins/ptd/dtensor/model_on_mesh.hpp"
#include "plugins/ptd/schedule/schedule.hpp"
#include "yoke/backend.hpp"

namespace yoke::ptd {

// The values of all keys, set or default. The README explains each.
struct PtdOptions {
  int64_t unit_bytes;
  bool reshard_after_forward;
  Accumulate accumulate;
  bool recompute;  // key activation_checkpoint = "full"
  bool shard_over_cp;
  bool cuda_graph;
  MeshOptions mesh;

  // The host has checked types, ranges and choices.
  explicit PtdOptions(const Options& options);
};

// Returns the keys with their defaults, as `describe` gives them to the host. They live as long as
// the process.
const std::vector<const YokeOptionInfo*>& option_infos();

}  // namespace yoke::ptd
