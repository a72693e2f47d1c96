// The costs are sums over the same list that the executor runs, so the table that a run prints at
// its start and the bytes that it counts later cannot disagree. Formulas per strategy would be
// shorter, but every new option of the schedule would have to be added to them.
#include "sdk/mesh/schedule/costs.hpp"

#include <algorithm>

#include "sdk/mesh/schedule/live_activations.hpp"
#include "sdk/mesh/schedule/unsharded.hpp"

namespace yoke::mesh {
namespace {

bool is_known(const BlockCost& block) {
  return block.activation >= 0 && block.carry >= 0 && block.input >= 0;
}

// Returns what an action needs at its peak, compared with what existed when it began.
int64_t peak_of(ActionKind kind, const PassPeaks& bytes) {
  switch (kind) {
    case ActionKind::kForward:
    case ActionKind::kRecompute:
      return bytes.forward;
    case ActionKind::kBackward:
      return bytes.backward;
    case ActionKind::kBackwardInput:
      return bytes.backward_input;
    case ActionKind::kBackwardWeight:
      return bytes.backward_weight;
    default:
      return 0;
  }
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

std::vector<int64_t> ActionCosts::unsharded_bytes() const {
  return mesh::unsharded_bytes(spec_, actions_);
}

std::vector<int64_t> ActionCosts::activation_bytes() const {
  return known_ ? live_activations(spec_, actions_, blocks_) : std::vector<int64_t>();
}

// Only passes over blocks count. The norm of the gradients needs less than 1 % of their memory. The
// update needs a buffer of a fixed size, or with Muon two units in the compute type, at a time when
// no activations exist.
std::vector<int64_t> ActionCosts::temporary_bytes() const {
  const auto has_passes = [](const BlockCost& block) { return block.passes.has_value(); };
  if (!known_ || !std::all_of(blocks_.begin(), blocks_.end(), has_passes)) return {};
  const std::vector<int64_t> after = activation_bytes();
  std::vector<int64_t> temporary;
  int64_t before = 0;
  for (size_t i = 0; i < actions_.size(); ++i) {
    const Action& a = actions_[i];
    const int64_t more = a.block < 0 ? 0 : peak_of(a.kind, *blocks_[a.block].passes);
    temporary.push_back(std::max<int64_t>(before + more - after[i], 0));
    before = after[i];
  }
  return temporary;
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
    case ActionKind::kReduceScales:
    case ActionKind::kUnshard:
    case ActionKind::kReduceGrad:
      return {Traffic::kShards, action.bytes};
    case ActionKind::kUpdate:
      return {action.bytes > 0 ? Traffic::kShards : Traffic::kNone, action.bytes};
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

}  // namespace yoke::mesh
