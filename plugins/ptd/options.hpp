// The keys of [ptd] in a run file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plugins/ptd/mesh.hpp"
#include "sdk/mesh/dtensor/model_on_mesh.hpp"
#include "sdk/mesh/schedule/block_costs.hpp"
#include "sdk/mesh/schedule/schedule.hpp"
#include "yoke/backend.hpp"

namespace yoke::ptd {

// The values of all keys, set or default. The README explains each.
struct PtdOptions {
  int64_t unit_bytes;
  bool reshard_after_forward;
  Accumulate accumulate;
  Recompute recompute;  // key activation_checkpoint
  bool fp8_gather;
  bool shard_over_cp;
  bool cuda_graph;
  bool exact_sums;
  PipelineKind pp_schedule;
  int pp_chunks;                 // stages of each rank; 0 = as many as the schedule has by default
  std::string pp_cut;            // blocks of each stage, such as "5,4,4,3", or "auto"
  int pp_whole;                  // most unsharded stages of a rank; 0 = no limit
  std::string pp_schedule_file;  // path of a file with the orders; "" = those of pp_schedule
  std::string pp_orders;         // content of that file
  MeshOptions mesh;

  // The host has checked types, ranges and choices. pp_degree: with several stages, units stay
  // whole during the step and gradients are reduced once, unless the user has set it otherwise:
  // each rank has only a part of the model, and would gather it again for every micro-batch.
  PtdOptions(const Options& options, int32_t pp_degree);
};

// Returns true if the pipeline passes outputs to lower ranks too, because ranks have several
// stages.
inline bool stages_return(const PtdOptions& options) {
  return !options.pp_schedule_file.empty() || info_of(options.pp_schedule).chunks > 1;
}

// Returns how tensor parallelism cuts tensors.
inline TensorCuts tensor_cuts(const PtdOptions& options) {
  return {options.mesh.sequence_parallel, options.mesh.loss_parallel};
}

// Returns the keys with their defaults, as `describe` gives them to the host. They live as long as
// the process.
const std::vector<const YokeOptionInfo*>& option_infos();

}  // namespace yoke::ptd
