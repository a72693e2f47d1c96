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

int64_t peak(const std::vector<int64_t>& bytes) {
  return bytes.empty() ? 0 : *std::max_element(bytes.begin(), bytes.end());
}

}  // namespace

ActionCosts::ActionCosts(const StepSpec& spec,
                         const std::vector<Action>& actions,
                         const std::vector<BlockCost>& blocks)
    : spec_(spec),
      actions_(actions),
      blocks_(blocks),
      stages_(spec.stages()),
      known_(std::all_of(blocks.begin(), blocks.end(), is_known)) {}

// With one shard nothing is gathered, and backward adds directly to the gradient shard.
std::vector<int64_t> ActionCosts::unsharded_bytes() const {
  if (spec_.shards == 1) return std::vector<int64_t>(actions_.size(), 0);
  return memory_bytes(spec_, actions_);
}

std::vector<int64_t> ActionCosts::activation_bytes() const {
  std::vector<int64_t> bytes;
  if (!known_) return bytes;
  int64_t live = 0;
  for (const Action& action : actions_) bytes.push_back(live += growth(action));
  return bytes;
}

// Returns the bytes of what a message carries: the output of the stage's last block, or the input
// of its first one.
int64_t ActionCosts::message_bytes(const Action& action) const {
  if (!known_) return -1;
  const OwnStage& stage = stages_[position_of(action.stage, stages_)];
  return info_of(action.kind).message->is_at_output() ? blocks_[stage.end - 1].carry
                                                      : blocks_[stage.first].input;
}

// Returns true if the output of a block is kept although the block is computed again: as the input
// of the next block, from which that one is computed again.
bool ActionCosts::keeps_output(int block) const {
  if (spec_.recompute == Recompute::kBlocks) return true;
  return spec_.recompute == Recompute::kStages &&
         std::any_of(stages_.begin(), stages_.end(), [&](const OwnStage& s) {
           return s.end == block + 1 && s.to == s.rank;
         });
}

// Returns by how many bytes the kept activations grow with an action; negative if they shrink.
int64_t ActionCosts::growth(const Action& action) const {
  if (action.kind == ActionKind::kReceiveCarry || action.kind == ActionKind::kReceiveCarryGrad)
    return message_bytes(action);
  if (action.block < 0) return 0;
  const BlockCost& cost = blocks_[action.block];
  // The gradient that a message has brought ends with the backward of the stage's last block.
  const bool had_message = std::any_of(stages_.begin(), stages_.end(), [&](const OwnStage& s) {
    return action.block + 1 == s.end && s.sends();
  });
  const int64_t grad = had_message ? cost.carry : 0;
  switch (action.kind) {
    case ActionKind::kForward:
      if (action.save == Save::kAll) return cost.activation + cost.carry;
      return keeps_output(action.block) ? cost.carry : 0;
    case ActionKind::kRecompute:
      return cost.activation + (keeps_output(action.block) ? 0 : cost.carry);
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

Payload ActionCosts::payload_of(const Action& action) const {
  if (const auto message = info_of(action.kind).message) {
    if (message->step == MessageInfo::kSend || message->step == MessageInfo::kReceive)
      return {Traffic::kStages, message_bytes(action)};
    return {};
  }
  switch (action.kind) {
    case ActionKind::kExchangeTied:
      return {Traffic::kStages, 2 * action.bytes};
    case ActionKind::kUnshard:
    case ActionKind::kReduceGrad:
      return {Traffic::kShards, action.bytes};
    case ActionKind::kAllReduceGrad:
      return {Traffic::kReplicas, action.bytes};
    default:
      return {};
  }
}

StepCosts ActionCosts::totals() const {
  StepCosts costs;
  costs.unsharded_bytes = peak(unsharded_bytes());
  costs.activation_bytes = known_ ? peak(activation_bytes()) : -1;
  for (const Action& action : actions_) {
    const Payload payload = payload_of(action);
    if (payload.traffic == Traffic::kStages) costs.pp_bytes += payload.bytes;
    if (payload.traffic == Traffic::kShards) costs.dp_shard_bytes += payload.bytes;
    if (payload.traffic == Traffic::kReplicas) costs.dp_replicate_bytes += payload.bytes;
  }
  if (!known_) costs.pp_bytes = -1;
  return costs;
}

}  // namespace yoke::ptd
