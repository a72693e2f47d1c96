// The layouts that a backend can run, found from what it declares.
#pragma once

#include <string>
#include <vector>

#include "sdk/conformance/run.hpp"

namespace yoke::conformance {

// The axes and compute dtypes that it declares; with YOKE_BY_OPTIONS, those of them that plan
// accepts with the options at their defaults, or with one other value.
std::vector<int> declared_axes(Subject& subject, const ParallelBackend& backend);
std::vector<int32_t> declared_dtypes(Subject& subject, const ParallelBackend& backend);

// One rank.
RunSpec single_rank(const ParallelBackend& backend, int steps = 6);
// One rank, and two along each data axis.
std::vector<RunSpec> small_layouts(Subject& subject, const ParallelBackend& backend);
// Degree 2 along each declared axis alone, fp64 if it can. Empty with nproc = 1.
std::vector<RunSpec> two_ranks(Subject& subject, const ParallelBackend& backend);
// The same along the data axes only, where batches are split.
std::vector<RunSpec> two_data_ranks(Subject& subject, const ParallelBackend& backend);
// Four ranks: degree 4 along each axis alone, and 2 x 2 along each pair that plan accepts.
std::vector<RunSpec> four_ranks(Subject& subject, const ParallelBackend& backend);

// "dp_shards 2, zero_stage = 3"
std::string layout_text(const RunSpec& spec);

// fp64, or the most precise dtype that it declares.
int32_t best_dtype(const ParallelBackend& backend);
// What is to be expected between two correct runs in that dtype: relative, of losses and tensors.
double tolerance(int32_t dtype);

}  // namespace yoke::conformance
