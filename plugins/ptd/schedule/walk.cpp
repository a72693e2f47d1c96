#include "plugins/ptd/schedule/walk.hpp"

#include <algorithm>

namespace yoke::ptd {

Walk::Walk(const StepSpec& spec)
    : spec_(spec),
      first_trained_(
          static_cast<int>(spec.forward_only ? spec.blocks.size() : spec.first_trained_block())),
      blocks_(spec.blocks.size() * spec.micros) {
  const Params params = spec.shards == 1 ? Params::kWhole : Params::kSharded;
  units_.assign(spec.units.size(), UnitState{.params = params});
}

std::string Walk::fail(Rule rule, const std::string& text) {
  rule_ = rule;
  return text;
}

std::string Walk::apply(const Action& a) {
  if (updated_ > 0 || loss_ > 0) return fail(Rule::kEnd, "comes after the end of the step");
  switch (a.kind) {
    case ActionKind::kUnshard:
    case ActionKind::kWaitUnshard:
    case ActionKind::kReshard:
      return unshard(a);
    case ActionKind::kForward:
    case ActionKind::kRecompute:
    case ActionKind::kBackward:
      return compute(a);
    case ActionKind::kReduceGrad:
    case ActionKind::kWaitReduce:
      return reduce(a);
    case ActionKind::kAllReduceGrad:
    case ActionKind::kWaitGrad:
      return all_reduce(a);
    case ActionKind::kReducePartialGrads:
    case ActionKind::kReduceLoss:
    case ActionKind::kReduceScalars:
    case ActionKind::kUpdate:
      return end(a);
  }
  return fail(Rule::kEnd, "is no action");
}

std::string Walk::unshard(const Action& a) {
  UnitState& unit = units_[a.unit];
  const int64_t size = spec_.units[a.unit].param_bytes;
  if (spec_.shards == 1) return fail(Rule::kUnshard, "nothing is sharded");
  if (a.kind != ActionKind::kWaitUnshard && a.bytes != size)
    return fail(Rule::kBytes, "wrong bytes");
  switch (a.kind) {
    case ActionKind::kUnshard:
      if (unit.params != Params::kSharded) return fail(Rule::kUnshard, "the unit is not resharded");
      unit.params = Params::kGathering;
      bytes_ += size;
      return "";
    case ActionKind::kWaitUnshard:
      if (unit.params != Params::kGathering)
        return fail(Rule::kUnshard, "no Unshard is on its way");
      unit.params = Params::kWhole;
      return "";
    default:
      if (unit.params != Params::kWhole) return fail(Rule::kUnshard, "the unit is not whole");
      unit.params = Params::kSharded;
      bytes_ -= size;
      return "";
  }
}

std::string Walk::compute(const Action& a) {
  for (int u : spec_.blocks[a.block]) {
    if (units_[u].params != Params::kWhole) {
      return fail(Rule::kWhole, "uses unit " + std::to_string(u) + ", which is not whole");
    }
  }
  if (clipped_ > 0) return fail(Rule::kEnd, "comes after ReduceScalars");
  return a.kind == ActionKind::kBackward ? backward(a) : forward(a);
}

std::string Walk::forward(const Action& a) {
  const size_t blocks = spec_.blocks.size();
  BlockState* const row = &blocks_[a.micro * blocks];
  BlockState& block = row[a.block];
  if (a.kind == ActionKind::kRecompute) {
    if (!block.forward) return fail(Rule::kCompute, "its Forward has not run");
    if (block.saved || block.backward) return fail(Rule::kCompute, "there is nothing to recompute");
    block.saved = true;
    return "";
  }
  if (block.forward) return fail(Rule::kCompute, "has run before");
  if (a.block > 0 && !row[a.block - 1].forward)
    return fail(Rule::kCompute, "the block before has not run");
  if (a.save && a.block < first_trained_)
    return fail(Rule::kCompute, "no backward will use what it saves");
  block.forward = true;
  block.saved = a.save;
  return "";
}

std::string Walk::backward(const Action& a) {
  const size_t blocks = spec_.blocks.size();
  BlockState* const row = &blocks_[a.micro * blocks];
  BlockState& block = row[a.block];
  if (a.block < first_trained_)
    return fail(Rule::kCompute, "nothing before the block is trainable");
  if (!block.saved) return fail(Rule::kCompute, "nothing is saved for it");
  if (a.block + 1 < static_cast<int>(blocks) && !row[a.block + 1].backward) {
    return fail(Rule::kCompute, "the block after it has not run backward");
  }
  block.saved = false;
  block.backward = true;
  return add_gradients(a);
}

std::string Walk::add_gradients(const Action& a) {
  for (int u : spec_.blocks[a.block]) {
    if (!spec_.units[u].trainable) continue;
    UnitState& unit = units_[u];
    if (unit.grads == Grads::kReducing)
      return fail(Rule::kGradient, "its gradients are on their way");
    if (unit.replicas != 0)
      return fail(Rule::kAllReduceGrad, "its gradients are already summed over replicas");
    if (unit.grads == Grads::kEmpty && spec_.shards > 1) bytes_ += spec_.units[u].grad_bytes;
    unit.grads = Grads::kAdding;
    ++unit.additions;
  }
  return "";
}

int Walk::blocks_using(int unit) const {
  return static_cast<int>(
      std::count_if(spec_.blocks.begin(), spec_.blocks.end(), [&](const auto& units) {
        return std::find(units.begin(), units.end(), unit) != units.end();
      }));
}

std::string Walk::reduce(const Action& a) {
  UnitState& unit = units_[a.unit];
  const int64_t size = spec_.units[a.unit].grad_bytes;
  if (spec_.shards == 1) return fail(Rule::kGradient, "nothing is sharded");
  if (a.bytes != size) return fail(Rule::kBytes, "wrong bytes");
  if (a.kind == ActionKind::kWaitReduce) {
    if (unit.grads != Grads::kReducing || unit.reducing_micro != a.micro) {
      return fail(Rule::kGradient, "no ReduceGrad is on its way");
    }
    unit.grads = Grads::kEmpty;
    bytes_ -= size;
    return "";
  }
  const int per_reduction = spec_.accumulate == Accumulate::kSharded ? 1 : spec_.micros;
  if (unit.grads != Grads::kAdding)
    return fail(Rule::kGradient, "there are no gradients to reduce");
  if (unit.additions != blocks_using(a.unit) * per_reduction) {
    return fail(Rule::kGradient, "the gradients are not complete");
  }
  if (a.micro != unit.reduced_micros + per_reduction - 1)
    return fail(Rule::kGradient, "wrong micro-batch");
  unit.grads = Grads::kReducing;
  unit.additions = 0;
  unit.reducing_micro = a.micro;
  unit.reduced_micros += per_reduction;
  return "";
}

// The gradient shard of a unit holds all micro-batches.
static bool shard_complete(
    const StepSpec& spec, int additions, int blocks, int reduced, bool idle) {
  return spec.shards > 1 ? idle && reduced == spec.micros : additions == blocks * spec.micros;
}

std::string Walk::all_reduce(const Action& a) {
  UnitState& unit = units_[a.unit];
  if (spec_.replicas == 1) return fail(Rule::kAllReduceGrad, "there are no replicas");
  if (a.kind == ActionKind::kWaitGrad) {
    if (unit.replicas != 1) return fail(Rule::kAllReduceGrad, "no AllReduceGrad is on its way");
    unit.replicas = 2;
    return "";
  }
  if (a.bytes * spec_.shards != spec_.units[a.unit].grad_bytes)
    return fail(Rule::kBytes, "wrong bytes");
  if (unit.replicas != 0)
    return fail(Rule::kAllReduceGrad, "the gradients are already summed over replicas");
  if (!shard_complete(spec_,
                      unit.additions,
                      blocks_using(a.unit),
                      unit.reduced_micros,
                      unit.grads == Grads::kEmpty)) {
    return fail(Rule::kAllReduceGrad, "the gradient shard is not complete");
  }
  unit.replicas = 1;
  return "";
}

std::string Walk::gradients_final() {
  for (size_t u = 0; u < units_.size(); ++u) {
    const UnitState& unit = units_[u];
    if (!spec_.units[u].trainable) continue;
    const int blocks = blocks_using(static_cast<int>(u));
    const std::string of_unit = "of unit " + std::to_string(u);
    if (!shard_complete(
            spec_, unit.additions, blocks, unit.reduced_micros, unit.grads == Grads::kEmpty)) {
      return fail(Rule::kGradient, "the gradients " + of_unit + " are not complete");
    }
    if (spec_.replicas > 1 && unit.replicas != 2) {
      return fail(Rule::kAllReduceGrad,
                  "the gradients " + of_unit + " are not summed over the replicas");
    }
  }
  return "";
}

std::string Walk::end(const Action& a) {
  if (spec_.forward_only != (a.kind == ActionKind::kReduceLoss)) {
    return fail(Rule::kEnd, "does not belong into this kind of step");
  }
  if (a.kind == ActionKind::kReduceLoss) {
    ++loss_;
    return "";
  }
  if (a.kind == ActionKind::kReducePartialGrads) {
    if (!spec_.reduce_partial_grads || summed_++ > 0 || clipped_ > 0)
      return fail(Rule::kPartialGrads, "there is nothing to sum over tp, or not now");
    return gradients_final();
  }
  if (a.kind == ActionKind::kReduceScalars) {
    if (clipped_++ > 0) return fail(Rule::kEnd, "has run before");
    if (spec_.reduce_partial_grads && summed_ == 0)
      return fail(Rule::kPartialGrads, "the gradients of what is not cut are not summed over tp");
    return gradients_final();
  }
  if (clipped_ == 0) return fail(Rule::kEnd, "ReduceScalars has not run");
  ++updated_;
  return "";
}

std::string Walk::finish() {
  if (updated_ + loss_ != 1) return fail(Rule::kEnd, "the step does not end");
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const int block = static_cast<int>(i % spec_.blocks.size());
    if (!blocks_[i].forward || (block >= first_trained_ && !blocks_[i].backward)) {
      return fail(Rule::kCompute, "block " + std::to_string(block) + " has not run");
    }
  }
  for (size_t u = 0; u < units_.size(); ++u) {
    if (spec_.shards > 1 && units_[u].params != Params::kSharded) {
      return fail(Rule::kUnshard, "unit " + std::to_string(u) + " is not resharded");
    }
  }
  return "";
}

}  // namespace yoke::ptd
