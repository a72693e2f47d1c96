// The costs are sums over the same list that the executor runs, so the table that a run prints at
// its start and the bytes that it counts later cannot disagree. Formulas per strategy would be
// shorter, but every new option of the schedule would have to be added to them.
#include "plugins/ptd/schedule/costs.hpp"

#include <algorithm>

#include "plugins/ptd/schedule/checker.hpp"
#include "plugins/ptd/schedule/live_activations.hpp"

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
  return known_ ? live_activations(spec_, actions_, blocks_) : std::vector<int64_t>();
}

// Returns the bytes of what a message carries: the output of the stage's last block, or the input
// of its first one.
int64_t ActionCosts::message_bytes(const Action& action) const {
  if (!known_) return -1;
  const OwnStage& stage = stages_[position_of(action.stage, stages_)];
  return info_of(action.kind).message->is_at_output() ? blocks_[stage.end - 1].carry
                                                      : blocks_[stage.first].input;
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
