// The orders over a vee, in which each rank r has the stages r and 2 p - 1 - r. Pure.
#pragma once

#include <vector>

#include "sdk/mesh/schedule/pipeline.hpp"

namespace yoke::mesh {

// Return the order of one rank; see PipelineKind. dual_pipe_v needs at least 2 * ranks
// micro-batches.
std::vector<StageStep> zb_v(int rank, int ranks, int micros);
std::vector<StageStep> v_half(int rank, int ranks, int micros);
std::vector<StageStep> v_min(int rank, int ranks, int micros);
std::vector<StageStep> dual_pipe_v(int rank, int ranks, int micros);

}  // namespace yoke::mesh
