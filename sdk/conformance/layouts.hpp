// Finds the layouts that a backend can run, starting from what it declares.
#pragma once

#include <string>
#include <vector>

#include "sdk/conformance/run.hpp"

namespace yoke::conformance {

// Return the axes and compute dtypes that the backend declares. A backend with the trait
// YOKE_BY_OPTIONS declares what some values of its options allow. For such a backend, an axis or
// dtype is returned only if plan accepts it with all options at their defaults, or with one option
// changed.
std::vector<int> declared_axes(Subject& subject, const ParallelBackend& backend);
std::vector<int32_t> declared_dtypes(Subject& subject, const ParallelBackend& backend);

// Returns the layouts of one rank, and of two ranks along each data axis.
std::vector<RunSpec> small_layouts(Subject& subject, const ParallelBackend& backend);
// Returns the layouts of one rank, and of two ranks along each declared axis.
std::vector<RunSpec> one_and_two_ranks(Subject& subject, const ParallelBackend& backend);
// Returns the layouts of two ranks along each declared axis. Empty if nproc is 1.
std::vector<RunSpec> two_ranks(Subject& subject, const ParallelBackend& backend);
// Like two_ranks, but only for the data axes, over which batches are split.
std::vector<RunSpec> two_data_ranks(Subject& subject, const ParallelBackend& backend);
// Returns the layouts of three ranks along each axis that accepts them, with a batch that three
// divides.
std::vector<RunSpec> three_ranks(Subject& subject, const ParallelBackend& backend);
// Returns the layouts of four ranks: degree 4 along each axis, and 2 x 2 along each pair of axes
// that plan accepts.
std::vector<RunSpec> four_ranks(Subject& subject, const ParallelBackend& backend);

// Throws NotRun with the reason if there are no layouts of so many ranks.
void require_layouts(const std::vector<RunSpec>& layouts,
                     Subject& subject,
                     const ParallelBackend& backend,
                     int32_t ranks);

// Returns the layout as text, e.g. "dp_shards 2, zero_stage = 3".
std::string layout_text(const RunSpec& spec);

}  // namespace yoke::conformance
