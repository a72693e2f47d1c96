// The walk is a state machine per unit and one per block and micro-batch. A unit's parameters are
// sharded, being gathered or whole; its gradient buffer is empty, being added to or reduced. An
// action is correct if every state that it touches allows it. The walk also adds up the bytes that
// exist, so the memory of a step is computed by the code that checks it.
//
// The walk states what each action requires, and never which action must follow: that would repeat
// the rules of the builder.
#include "sdk/mesh/schedule/walk.hpp"

#include <algorithm>

namespace yoke::mesh {

Walk::Walk(const StepSpec& spec)
    : spec_(spec),
      stages_(spec.stages()),
      trained_(spec.trained_blocks()),
      blocks_(spec.blocks.size() * spec.micros),
      messages_(stages_.size() * spec.micros) {
  for (size_t s = 0; s < stages_.size(); ++s)
    stage_of_block_.resize(stages_[s].end, static_cast<int>(s));
  // With one shard nothing is ever gathered: parameters are whole from the start.
  const Params params = spec.shards == 1 ? Params::kWhole : Params::kSharded;
  units_.assign(spec.units.size(),
                UnitState{.params = params, .additions = std::vector<int>(spec.micros)});
}

std::string Walk::fail(CheckedRule rule, const std::string& text) {
  rule_ = rule;
  return text;
}

std::string Walk::apply(const Action& a) {
  if (updates_ > 0 || losses_ > 0)
    return fail(CheckedRule::kEnd, "comes after the end of the step");
  switch (a.kind) {
    case ActionKind::kReduceScales:
      return scales(a);
    case ActionKind::kUnshard:
    case ActionKind::kWaitUnshard:
    case ActionKind::kReshard:
      return unshard(a);
    case ActionKind::kForward:
    case ActionKind::kRecompute:
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
    case ActionKind::kBackwardWeight:
      return compute(a);
    case ActionKind::kSendCarry:
    case ActionKind::kReceiveCarry:
    case ActionKind::kWaitCarry:
    case ActionKind::kFreeCarry:
    case ActionKind::kSendCarryGrad:
    case ActionKind::kReceiveCarryGrad:
    case ActionKind::kWaitCarryGrad:
    case ActionKind::kFreeCarryGrad:
      return message(a, *info_of(a.kind).message);
    case ActionKind::kReduceGrad:
    case ActionKind::kWaitReduce:
      return reduce(a);
    case ActionKind::kAllReduceGrad:
    case ActionKind::kWaitGrad:
      return all_reduce(a);
    case ActionKind::kExchangeTied:
      return exchange_tied(a);
    case ActionKind::kReducePartialGrads:
    case ActionKind::kReduceLoss:
    case ActionKind::kReduceScalars:
    case ActionKind::kUpdate:
      return end(a);
  }
  return fail(CheckedRule::kEnd, "is not a known action");
}

std::string Walk::scales(const Action& a) {
  if (spec_.scale_bytes == 0 || scaled_)
    return fail(CheckedRule::kScales, "there are no scales to reduce, or not again");
  if (a.bytes != spec_.scale_bytes) return fail(CheckedRule::kBytes, "wrong bytes");
  scaled_ = true;
  return "";
}

std::string Walk::unshard(const Action& a) {
  UnitState& unit = units_[a.unit];
  const UnitSpec& spec = spec_.units[a.unit];
  if (spec_.shards == 1) return fail(CheckedRule::kUnshard, "nothing is sharded");
  const int64_t size = a.kind == ActionKind::kUnshard ? spec.gathered_bytes() : spec.param_bytes;
  if (a.kind != ActionKind::kWaitUnshard && a.bytes != size)
    return fail(CheckedRule::kBytes, "wrong bytes");
  if (spec.fp8_bytes > 0 && !scaled_)
    return fail(CheckedRule::kScales, "the scales of the unit are not reduced yet");
  switch (a.kind) {
    case ActionKind::kUnshard:
      if (unit.params != Params::kSharded)
        return fail(CheckedRule::kUnshard, "the unit is not resharded");
      unit.params = Params::kGathering;
      return "";
    case ActionKind::kWaitUnshard:
      if (unit.params != Params::kGathering)
        return fail(CheckedRule::kUnshard, "no Unshard is in flight");
      unit.params = Params::kWhole;
      return "";
    default:
      if (unit.params != Params::kWhole)
        return fail(CheckedRule::kUnshard, "the unit is not whole");
      unit.params = Params::kSharded;
      return "";
  }
}

// Checks what the computations of a block need, then what each of them needs.
std::string Walk::compute(const Action& a) {
  if (scalars_ > 0) return fail(CheckedRule::kEnd, "comes after ReduceScalars");
  if (a.kind == ActionKind::kBackwardWeight) return backward_weight(a);
  for (int u : spec_.blocks[a.block]) {
    if (units_[u].params != Params::kWhole) {
      return fail(CheckedRule::kWhole, "uses unit " + std::to_string(u) + ", which is not whole");
    }
  }
  const bool is_forward = a.kind == ActionKind::kForward || a.kind == ActionKind::kRecompute;
  return is_forward ? forward(a) : backward(a);
}

// Returns true if all blocks of one of this rank's stages (an index into stages_) have run.
bool Walk::ran_forward(int stage, int micro) const {
  return blocks_[micro * spec_.blocks.size() + stages_[stage].end - 1].forward;
}

bool Walk::ran_backward(int stage, int micro) const {
  const int first = std::max(stages_[stage].first, trained_.backward_from);
  return first < stages_[stage].end && blocks_[micro * spec_.blocks.size() + first].backward;
}

// Within a micro-batch the blocks run in order, because each one reads the output of the one before
// it: of the same stage, of the stage before if that is on this rank too, or of a message. The
// order of the micro-batches is not checked here.
std::string Walk::forward(const Action& a) {
  const size_t blocks = spec_.blocks.size();
  BlockState* const row = &blocks_[a.micro * blocks];
  BlockState& block = row[a.block];
  if (a.kind == ActionKind::kRecompute) {
    if (!block.forward) return fail(CheckedRule::kCompute, "its Forward has not run");
    // If activations are saved, backward can run already; after backward nothing needs them.
    if (block.saved || block.backward)
      return fail(CheckedRule::kCompute, "there is nothing to recompute");
    const bool has_input =
        block.input || (a.block > stage_of(a.block).first && row[a.block - 1].saved);
    if (!has_input) return fail(CheckedRule::kCompute, "its input is not kept");
    block.saved = block.input = true;
    return "";
  }
  if (block.forward) return fail(CheckedRule::kCompute, "has run before");
  const int own = stage_of_block_[a.block];
  const OwnStage& stage = stages_[own];
  if (a.block > stage.first) {
    if (!row[a.block - 1].forward)
      return fail(CheckedRule::kCompute, "the block before has not run");
  } else if (stage.from == stage.rank) {
    if (!ran_forward(own - 1, a.micro))
      return fail(CheckedRule::kCompute, "the stage before has not run");
  } else if (stage.receives() &&
             messages_[a.micro * stages_.size() + own].carry_in != Message::kDone) {
    return fail(CheckedRule::kMessage, "the input of its stage has not been waited for");
  }
  // Saved activations that no backward uses would only take memory.
  if (a.save != Save::kNothing && a.block < trained_.backward_from)
    return fail(CheckedRule::kCompute, "no backward will use what it saves");
  block.forward = true;
  block.input = a.save != Save::kNothing;
  block.saved = a.save == Save::kAll;
  return "";
}

std::string Walk::backward(const Action& a) {
  const size_t blocks = spec_.blocks.size();
  BlockState* const row = &blocks_[a.micro * blocks];
  BlockState& block = row[a.block];
  if (a.block < trained_.backward_from)
    return fail(CheckedRule::kCompute, "neither the block nor one before it is trainable");
  if (!block.saved) return fail(CheckedRule::kCompute, "nothing is saved for it");
  // The gradient of the output of a block is the result of the backward of the next one, or of a
  // message.
  const int own = stage_of_block_[a.block];
  const OwnStage& stage = stages_[own];
  if (a.block + 1 < stage.end) {
    if (!row[a.block + 1].backward)
      return fail(CheckedRule::kCompute, "the block after it has not run backward");
  } else if (stage.to == stage.rank) {
    if (!ran_backward(own + 1, a.micro))
      return fail(CheckedRule::kCompute, "the next stage has not run backward");
  } else if (stage.sends() && messages_[a.micro * stages_.size() + own].grad_in != Message::kDone) {
    return fail(CheckedRule::kMessage,
                "the gradient of its stage's output has not been waited for");
  }
  block.saved = false;
  block.backward = true;
  block.weights_due = a.kind == ActionKind::kBackwardInput;
  return add_gradients(a);
}

std::string Walk::backward_weight(const Action& a) {
  BlockState& block = blocks_[a.micro * spec_.blocks.size() + a.block];
  if (!block.weights_due) return fail(CheckedRule::kCompute, "there is nothing left to compute");
  block.weights_due = false;
  return add_gradients(a);
}

// Adds the gradients of a block to the buffers of its units.
std::string Walk::add_gradients(const Action& a) {
  for (int u : spec_.blocks[a.block]) {
    if (!spec_.units[u].trainable) continue;
    UnitState& unit = units_[u];
    if (unit.grads == Grads::kReducing)
      return fail(CheckedRule::kGradient, "its gradients are being reduced");
    if (unit.all_reduce != AllReduce::kNone)
      return fail(CheckedRule::kAllReduceGrad,
                  "its gradients are already summed over the replicas");
    unit.grads = Grads::kAdding;
    // The first part of a backward adds some of the gradients; they are complete after the second.
    if (a.kind != ActionKind::kBackwardInput) ++unit.additions[a.micro];
  }
  return "";
}

// Returns how many blocks add gradients to the unit in one micro-batch. It is more than one
// if a parameter is tied, or if blocks share a unit.
int Walk::blocks_using(int unit) const {
  return static_cast<int>(
      std::count_if(spec_.blocks.begin(), spec_.blocks.end(), [&](const auto& units) {
        return std::find(units.begin(), units.end(), unit) != units.end();
      }));
}

std::string Walk::reduce(const Action& a) {
  UnitState& unit = units_[a.unit];
  const int64_t size = spec_.units[a.unit].grad_bytes;
  if (spec_.shards == 1) return fail(CheckedRule::kGradient, "nothing is sharded");
  if (a.bytes != size) return fail(CheckedRule::kBytes, "wrong bytes");
  if (a.kind == ActionKind::kWaitReduce) {
    if (unit.grads != Grads::kReducing || unit.reducing_micro != a.micro) {
      return fail(CheckedRule::kGradient, "no ReduceGrad is in flight");
    }
    unit.grads = Grads::kEmpty;
    return "";
  }
  if (unit.grads != Grads::kAdding)
    return fail(CheckedRule::kGradient, "there are no gradients to reduce");
  // `a` names the last micro-batch that the reduction covers, in the order in which they are
  // complete.
  const int covered = a.micro - unit.reduced_micros + 1;
  const bool allowed = spec_.accumulate == Accumulate::kSharded ? covered == 1
                       : evicts_stages()                        ? covered >= 1
                                                                : covered == spec_.micros;
  if (!allowed) return fail(CheckedRule::kGradient, "wrong micro-batch");
  // An early reduction would not fail when it runs: gradients that are added later would silently
  // be lost. Gradients of later micro-batches may already have been added; the rest of them
  // is reduced later.
  if (completed(a.unit) <= a.micro)
    return fail(CheckedRule::kGradient, "the gradients are not complete");
  unit.grads = Grads::kReducing;
  unit.reducing_micro = a.micro;
  unit.reduced_micros += covered;
  return "";
}

// Returns true if stages may be evicted, and their gradients reduced, before the end of the step.
bool Walk::evicts_stages() const {
  return spec_.whole_stages > 0 && spec_.whole_stages < static_cast<int>(stages_.size());
}

// Returns the number of micro-batches of which all blocks have added their gradients.
int Walk::completed(int unit) const {
  const std::vector<int>& added = units_[unit].additions;
  return static_cast<int>(std::count(added.begin(), added.end(), blocks_using(unit)));
}

// Returns true if the gradient shard of the unit holds the sum over all micro-batches.
bool Walk::shard_complete(int unit) const {
  const UnitState& state = units_[unit];
  if (spec_.shards == 1) return completed(unit) == spec_.micros;
  return state.grads == Grads::kEmpty && state.reduced_micros == spec_.micros;
}

std::string Walk::all_reduce(const Action& a) {
  UnitState& unit = units_[a.unit];
  if (spec_.replicas == 1) return fail(CheckedRule::kAllReduceGrad, "there are no replicas");
  if (a.kind == ActionKind::kWaitGrad) {
    if (unit.all_reduce != AllReduce::kInFlight)
      return fail(CheckedRule::kAllReduceGrad, "no AllReduceGrad is in flight");
    unit.all_reduce = AllReduce::kDone;
    return "";
  }
  // The replicas sum only the shard, after the shards have reduced the whole buffer.
  if (a.bytes * spec_.shards != spec_.units[a.unit].grad_bytes)
    return fail(CheckedRule::kBytes, "wrong bytes");
  if (unit.all_reduce != AllReduce::kNone)
    return fail(CheckedRule::kAllReduceGrad, "the gradients are already summed over the replicas");
  if (blocks_using(a.unit) == 0 || !shard_complete(a.unit))
    return fail(CheckedRule::kAllReduceGrad, "the gradient shard is not complete");
  if (spec_.exact_sums && spec_.units[a.unit].is_tied() && !unit.exchanged)
    return fail(CheckedRule::kTied, "the gradients of another rank must be added before");
  unit.all_reduce = AllReduce::kInFlight;
  return "";
}

// Returns true if the gradient shard of the unit is summed over all data ranks.
bool Walk::shard_reduced(int unit) const {
  return shard_complete(unit) &&
         (spec_.replicas == 1 || units_[unit].all_reduce == AllReduce::kDone);
}

std::string Walk::exchange_tied(const Action& a) {
  const UnitSpec& unit = spec_.units[a.unit];
  if (!unit.is_tied() || unit.partner != a.peer || units_[a.unit].exchanged || scalars_ > 0)
    return fail(CheckedRule::kTied, "there is nothing to exchange, or not now");
  if (a.bytes * spec_.shards != unit.grad_bytes) return fail(CheckedRule::kBytes, "wrong bytes");
  // With exact sums the replicas add up what both ranks have; all_reduce() checks that.
  if (spec_.exact_sums ? !shard_complete(a.unit) : !shard_reduced(a.unit))
    return fail(CheckedRule::kTied, "the gradient shard is not complete");
  units_[a.unit].exchanged = true;
  return "";
}

// Returns "" if every gradient shard is what the update needs. A unit that no block of this rank
// uses has no gradients here.
std::string Walk::gradients_final() {
  for (int u = 0; u < static_cast<int>(units_.size()); ++u) {
    if (!spec_.units[u].trainable || blocks_using(u) == 0) continue;
    const std::string of_unit = "of unit " + std::to_string(u);
    if (!shard_complete(u))
      return fail(CheckedRule::kGradient, "the gradients " + of_unit + " are not complete");
    if (spec_.replicas > 1 && units_[u].all_reduce != AllReduce::kDone) {
      return fail(CheckedRule::kAllReduceGrad,
                  "the gradients " + of_unit + " are not summed over the replicas");
    }
    if (spec_.units[u].is_tied() && !units_[u].exchanged)
      return fail(CheckedRule::kTied, "the gradients " + of_unit + " lack those of another rank");
  }
  return "";
}

// Checks the actions at the end of a step. Each must occur once, after all other actions.
std::string Walk::end(const Action& a) {
  if (spec_.forward_only != (a.kind == ActionKind::kReduceLoss)) {
    return fail(CheckedRule::kEnd, "does not belong into this kind of step");
  }
  if (a.kind == ActionKind::kReduceLoss) {
    ++losses_;
    return "";
  }
  // ReducePartialGrads must come before ReduceScalars, which sums the squared norm: if gradients
  // were still partial over tp, the ranks would compute a wrong norm.
  if (a.kind == ActionKind::kReducePartialGrads) {
    if (!spec_.reduce_partial_grads || partial_grads_++ > 0 || scalars_ > 0)
      return fail(CheckedRule::kPartialGrads, "there is nothing to sum over tp, or not now");
    return gradients_final();
  }
  if (a.kind == ActionKind::kReduceScalars) {
    if (scalars_++ > 0) return fail(CheckedRule::kEnd, "has run before");
    if (spec_.reduce_partial_grads && partial_grads_ == 0)
      return fail(CheckedRule::kPartialGrads,
                  "the gradients of tp-replicated parameters are not summed over tp");
    return gradients_final();
  }
  if (scalars_ == 0) return fail(CheckedRule::kEnd, "ReduceScalars has not run");
  if (a.bytes != spec_.update_bytes) return fail(CheckedRule::kBytes, "wrong bytes");
  ++updates_;
  return "";
}

std::string Walk::finish() {
  if (updates_ + losses_ != 1) return fail(CheckedRule::kEnd, "the step does not end");
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const int block = static_cast<int>(i % spec_.blocks.size());
    if (!blocks_[i].forward ||
        (block >= trained_.backward_from && (!blocks_[i].backward || blocks_[i].weights_due))) {
      return fail(CheckedRule::kCompute, "block " + std::to_string(block) + " has not run");
    }
  }
  if (const std::string missing = messages_done(); !missing.empty())
    return fail(CheckedRule::kMessage, missing);
  for (size_t u = 0; u < units_.size(); ++u) {
    // This also finds an Unshard without a WaitUnshard. gradients_final() has already found
    // gradients in flight.
    if (spec_.shards > 1 && units_[u].params != Params::kSharded) {
      return fail(CheckedRule::kUnshard, "unit " + std::to_string(u) + " is not resharded");
    }
  }
  return "";
}

}  // namespace yoke::mesh
