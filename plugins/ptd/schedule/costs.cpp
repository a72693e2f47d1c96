// The costs are sums over the same list that the executor runs, so the table that a run prints at
// its start and the bytes that it counts later cannot disagree. Formulas per strategy would be
// shorter, but every new option of the schedule would have to be added to them.
#include "plugins/ptd/schedule/costs.hpp"

#include <algorithm>

#include "plugins/ptd/schedule/checker.hpp"

namespace yoke::ptd {
namespace {

bool is_known(const BlockCost& block) {
  return block.activation >= 0 && block.carry >= 0 && block.input >= 0;
}

// Returns the bytes of what a message carries: the output of the stage's last block, or the input
// of its first one.
int64_t message_bytes(const Action& action,
                      const std::vector<OwnStage>& stages,
                      const std::vector<BlockCost>& blocks) {
  const OwnStage& stage = stages[position_of(action.stage, stages)];
  return info_of(action.kind).message->is_at_output() ? blocks[stage.end - 1].carry
                                                      : blocks[stage.first].input;
}

// Returns by how many bytes the kept activations grow with an action; negative if they shrink.
int64_t growth(const Action& action,
               const std::vector<OwnStage>& stages,
               const std::vector<BlockCost>& blocks,
               bool recompute) {
  if (action.kind == ActionKind::kReceiveCarry || action.kind == ActionKind::kReceiveCarryGrad)
    return message_bytes(action, stages, blocks);
  if (action.block < 0) return 0;
  const BlockCost& cost = blocks[action.block];
  // The gradient that a message has brought ends with the backward of the stage's last block.
  const bool had_message = std::any_of(stages.begin(), stages.end(), [&](const OwnStage& s) {
    return action.block + 1 == s.end && s.sends();
  });
  const int64_t grad = had_message ? cost.carry : 0;
  switch (action.kind) {
    case ActionKind::kForward:
      if (action.save) return cost.activation + cost.carry;
      // With recomputation only the block's output is kept, which is the next block's input.
      return recompute ? cost.carry : 0;
    case ActionKind::kRecompute:
      return cost.activation;
    case ActionKind::kBackwardInput:
      return -grad;
    // What the gradients of weights need is about as large as all that the block has kept.
    case ActionKind::kBackwardWeight:
      return -cost.activation - cost.carry - cost.input;
    case ActionKind::kBackward:
      return -cost.activation - cost.carry - cost.input - grad;
    default:
      return 0;
  }
}

int64_t peak_activations(const StepSpec& spec,
                         const std::vector<Action>& actions,
                         const std::vector<BlockCost>& blocks) {
  if (!std::all_of(blocks.begin(), blocks.end(), is_known)) return -1;
  const std::vector<OwnStage> stages = spec.stages();
  int64_t live = 0, peak = 0;
  for (const Action& action : actions) {
    live += growth(action, stages, blocks, spec.recompute);
    peak = std::max(peak, live);
  }
  return peak;
}

int64_t message_bytes_of_step(const StepSpec& spec,
                              const std::vector<Action>& actions,
                              const std::vector<BlockCost>& blocks) {
  if (!std::all_of(blocks.begin(), blocks.end(), is_known)) return -1;
  const std::vector<OwnStage> stages = spec.stages();
  int64_t bytes = 0;
  for (const Action& action : actions) {
    const std::optional<MessageInfo> message = info_of(action.kind).message;
    if (message && (message->step == MessageInfo::kSend || message->step == MessageInfo::kReceive))
      bytes += message_bytes(action, stages, blocks);
    if (action.kind == ActionKind::kExchangeTied) bytes += 2 * action.bytes;
  }
  return bytes;
}

}  // namespace

StepCosts step_costs(const StepSpec& spec,
                     const std::vector<Action>& actions,
                     const std::vector<BlockCost>& blocks) {
  StepCosts costs;
  // With one shard nothing is gathered, and backward adds directly to the gradient shard.
  costs.unsharded_bytes = spec.shards == 1 ? 0 : peak_bytes(spec, actions);
  costs.activation_bytes = peak_activations(spec, actions, blocks);
  costs.pp_bytes = message_bytes_of_step(spec, actions, blocks);
  for (const Action& action : actions) {
    if (action.kind == ActionKind::kUnshard || action.kind == ActionKind::kReduceGrad)
      costs.dp_shard_bytes += action.bytes;
    if (action.kind == ActionKind::kAllReduceGrad) costs.dp_replicate_bytes += action.bytes;
  }
  return costs;
}

}  // namespace yoke::ptd
