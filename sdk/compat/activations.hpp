// What the blocks of a model keep from forward to backward. No LibTorch.
#pragma once

#include <cstdint>
#include <vector>

#include "sdk/compat/recompute.hpp"
#include "yoke/backend.hpp"

namespace yoke::compat {

// Consecutive blocks that keep nothing but their input, and run forward again before their
// backward.
struct RecomputedUnit {
  uint64_t first, last;
};

// Consecutive blocks of a model, [first, end).
struct BlockRange {
  uint64_t first, end;
};

// Returns the blocks of each layer among [first, end), in ascending order. All blocks of a model
// but the first and the last belong to layers; the halves of a layer count as one.
std::vector<RecomputedUnit> layers_of(const YokeModelSummary& model, const BlockRange& blocks);

// Returns the units of a pipeline stage, or of a whole model, in ascending order. kUniform: units
// of `layers` layers. kBlock: the first `layers` layers, each a unit.
std::vector<RecomputedUnit> recomputed_units(const YokeModelSummary& model,
                                             Recompute recompute,
                                             int64_t layers,
                                             const BlockRange& stage);

// Returns the bytes that blocks keep for the backward of a micro-batch of `sequences` at the peak
// of a step, without what `units` compute again; -1 if the model does not report it.
int64_t activation_bytes(const YokeModelSummary& model,
                         const std::vector<RecomputedUnit>& units,
                         int64_t sequences);

}  // namespace yoke::compat
