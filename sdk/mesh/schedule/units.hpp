// Decides which parameters are gathered together: turns the blocks of a model into units. Pure
// arithmetic over indices and sizes; no LibTorch.
#pragma once

#include <cstdint>
#include <vector>

#include "sdk/mesh/schedule/stages.hpp"

namespace yoke::mesh {

struct ParamSpec {
  int64_t numel = 0;  // elements on this rank; tensor parallelism may have cut the parameter
  bool trainable = true;
  bool decay = true;  // weight decay applies
  // True if tp has several ranks but does not cut the parameter: all of its ranks hold the same
  // values.
  bool tp_replicated = false;
  // The rank along pp whose blocks use the parameter too; kNoRank = none. The parameter then has a
  // unit of its own on both ranks, so that its shards are the same there.
  int partner = OwnStage::kNoRank;
  // False on the second of these two ranks: the gradient norm counts the parameter once.
  bool counted = true;
  bool fp8 = false;       // gathered in fp8, not in the compute type
  int64_t muon_rows = 0;  // rows of a hidden matrix that Muon updates; 0 = another parameter
};

struct ModelSpec {
  std::vector<ParamSpec> params;
  // Parameter indices of each block, in execution order. A tied parameter is in several blocks.
  std::vector<std::vector<int>> blocks;
};

// Returns the model as a rank of a pipeline sees it: with only the blocks of its stages. Parameters
// keep their indices. No parameter may be used on more than two ranks.
ModelSpec part_of_model(const ModelSpec& model, const Stages& stages, int rank);

// Parameters that share one buffer: one all-gather makes them whole, one reduce-scatter reduces
// their gradients. All are trainable or all are frozen, so that nothing frozen is ever reduced. All
// or none are gathered in fp8, so that all elements of a gather have the same size.
struct Unit {
  std::vector<int> params;  // indices in buffer order; those with the same flags are neighbours
  bool trainable = true;
  bool fp8 = false;
};

struct UnitMap {
  std::vector<Unit> units;  // ordered by the first block that needs them
  // For each block, the units that must be whole while it runs, ascending.
  std::vector<std::vector<int>> of_block;
};

// Merges consecutive blocks into groups of at least unit_bytes, because every collective has a
// fixed cost. If the last group has less than half of unit_bytes, it joins the group before it. A
// parameter that several groups use, such as a tied head, gets its own unit: gathering it for the
// last block must not gather the first blocks with it. item_size: bytes of an element, as if none
// were in fp8; a group of which only some parameters are in fp8 has two units. stage_ends:
// blocks, ascending, after which a group ends in any case; empty, or the last one is the last block
// of the model.
UnitMap make_units(const ModelSpec& model,
                   int64_t unit_bytes,
                   int64_t item_size,
                   const std::vector<int>& stage_ends = {});

}  // namespace yoke::mesh
