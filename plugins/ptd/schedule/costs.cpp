// The costs are sums over the same list that the executor runs, so the table that a run prints at
// its start and the bytes that it counts later cannot disagree. Formulas per strategy would be
// shorter, but every new option of the schedule would have to be added to them.
#include "plugins/ptd/schedule/costs.hpp"

#include <algorithm>

#include "plugins/ptd/schedule/checker.hpp"

namespace yoke::ptd {
namespace {

// Returns by how many bytes the kept activations grow with an action; negative if they shrink.
int64_t growth(const Action& action, const std::vector<BlockCost>& blocks, bool recompute) {
  if (action.block < 0) return 0;
  const BlockCost& cost = blocks[action.block];
  switch (action.kind) {
    case ActionKind::kForward:
      if (action.save) return cost.activation + cost.carry;
      // With recomputation only the block's output is kept, which is the next block's input.
      return recompute ? cost.carry : 0;
    case ActionKind::kRecompute:
      return cost.activation;
    case ActionKind::kBackward:
      return -cost.activation - cost.carry;
    default:
      return 0;
  }
}

int64_t peak_activations(const StepSpec& spec,
                         const std::vector<Action>& actions,
                         const std::vector<BlockCost>& blocks) {
  for (const BlockCost& block : blocks) {
    if (block.activation < 0 || block.carry < 0) return -1;
  }
  int64_t live = 0, peak = 0;
  for (const Action& action : actions) {
    live += growth(action, blocks, spec.recompute);
    peak = std::max(peak, live);
  }
  return peak;
}

}  // namespace

StepCosts step_costs(const StepSpec& spec,
                     const std::vector<Action>& actions,
                     const std::vector<BlockCost>& blocks) {
  StepCosts costs;
  // With one shard nothing is gathered, and backward adds directly to the gradient shard.
  costs.unsharded_bytes = spec.shards == 1 ? 0 : peak_bytes(spec, actions);
  costs.activation_bytes = peak_activations(spec, actions, blocks);
  for (const Action& action : actions) {
    if (action.kind == ActionKind::kUnshard || action.kind == ActionKind::kReduceGrad)
      costs.dp_shard_bytes += action.bytes;
    if (action.kind == ActionKind::kAllReduceGrad) costs.dp_replicate_bytes += action.bytes;
  }
  return costs;
}

}  // namespace yoke::ptd
