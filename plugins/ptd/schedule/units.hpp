// Which parameters are gathered together: blocks in, units out. Pure arithmetic over indices and
// sizes.
#pragma once

#include <cstdint>
#include <vector>

namespace yoke::ptd {

struct ParamSpec {
  int64_t numel = 0;  // of this rank's part, where tensor parallelism cuts it
  bool trainable = true;
  bool decay = true;           // weight decay applies
  bool tp_replicated = false;  // every rank of tp, of several, has all of it
};

struct ModelSpec {
  std::vector<ParamSpec> params;
  std::vector<std::vector<int>>
      blocks;  // parameter indices, in execution order; a tied one in several
};

// Parameters that share one buffer: one all-gather makes them whole, one reduce-scatter shares out
// their gradients. All trainable or all frozen, so that nothing frozen is ever reduced.
struct Unit {
  std::vector<int> params;  // in buffer order: those that are updated alike stand together
  bool trainable = true;
};

struct UnitMap {
  std::vector<Unit> units;  // by the first block that needs them
  std::vector<std::vector<int>>
      of_block;  // units that must be whole while the block runs, ascending
};

// Merges consecutive blocks until they hold unit_bytes, because a collective costs about the same
// whatever its size; a rest of less than half of that joins the blocks before it. A parameter used
// by several merged groups (a tied head, say) is a unit of its own: gathering it for the last block
// must not drag the first blocks along. item_size: bytes of an element.
UnitMap make_units(const ModelSpec& model, int64_t unit_bytes, int64_t item_size);

}  // namespace yoke::ptd
