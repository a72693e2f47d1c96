// A message is received one operation ahead: it is under way while the rank still computes
// something else. Its buffer exists for that long, so more than one would cost memory.
//
// What was sent stays in memory until the other rank has received it. An output is needed for the
// backward in any case, and its gradient cannot come before the output has arrived, so FreeCarry
// does not block there. Of gradients, two of each stage may be in flight before the rank waits for
// the older one; but where messages are not received in step, that wait could be circular, and they
// are freed at the end. So are the outputs of stages without a backward: with frozen stages, ranks
// no longer take turns as the schedule intends, and a wait for them could be circular, too.
#include "sdk/mesh/schedule/computation.hpp"

#include <algorithm>
#include <utility>

namespace yoke::mesh {
namespace {

class Computation {
 public:
  explicit Computation(const StepSpec& spec)
      : spec_(spec),
        stages_(spec.stages()),
        trained_(spec.trained_blocks()),
        in_step_(spec.forward_only ? stages_.size() == 1
                                   : !spec.pipeline.given && info_of(spec.pipeline.kind).in_step) {}

  std::vector<Action> list() {
    for (const StageStep& step : order_of_rank()) {
      if (step.op == StageOp::kForward || runs_backward(stage(step))) order_.push_back(step);
    }
    if (!order_.empty()) receive(order_[0]);
    for (size_t k = 0; k < order_.size(); ++k) {
      if (k + 1 < order_.size()) receive(order_[k + 1]);
      const bool backward_next = k + 1 < order_.size() && order_[k + 1].op != StageOp::kForward &&
                                 order_[k + 1].stage == order_[k].stage &&
                                 order_[k + 1].micro == order_[k].micro;
      switch (order_[k].op) {
        case StageOp::kForward:
          forward(order_[k], backward_next);
          break;
        case StageOp::kBackwardWeight:
          backward_weight(order_[k]);
          break;
        default:
          backward(order_[k]);
      }
    }
    while (!under_way_.empty()) free_oldest();
    return std::move(ops_);
  }

 private:
  std::vector<StageStep> order_of_rank() const {
    const PipelineSpec& p = spec_.pipeline;
    if (spec_.forward_only) return evaluation_order(stages_, spec_.micros);
    if (p.given) return p.given->of_rank[p.rank];
    return training_order(p.kind, p.rank, p.ranks, p.chunks, spec_.micros);
  }

  const OwnStage& stage(const StageStep& step) const {
    return stages_[position_of(step.stage, stages_)];
  }
  bool runs_backward(const OwnStage& s) const { return s.end > trained_.backward_from; }
  bool passes_gradient(const OwnStage& s) const { return s.first >= trained_.gradient_from; }

  void message(ActionKind kind, const StageStep& step, int peer) {
    ops_.push_back({.kind = kind, .micro = step.micro, .stage = step.stage, .peer = peer});
  }

  void receive(const StageStep& step) {
    const OwnStage& s = stage(step);
    if (step.op == StageOp::kForward) {
      if (s.receives()) message(ActionKind::kReceiveCarry, step, s.from);
    } else if (step.op != StageOp::kBackwardWeight && s.sends()) {
      message(ActionKind::kReceiveCarryGrad, step, s.to);
    }
  }

  // If the backward follows at once, computing the last group again would save nothing.
  void forward(const StageStep& step, bool backward_next) {
    const OwnStage& s = stage(step);
    if (s.receives()) message(ActionKind::kWaitCarry, step, s.from);
    for (int b = s.first; b < s.end; ++b) {
      ops_.push_back({.kind = ActionKind::kForward,
                      .block = b,
                      .micro = step.micro,
                      .save = saved_by(s, b, backward_next)});
    }
    kept_ = backward_next ? step : StageStep{StageOp::kForward, -1, -1};
    if (!s.sends()) return;
    if (!runs_backward(s)) free_at_end(ActionKind::kFreeCarry, step, s.to);
    message(ActionKind::kSendCarry, step, s.to);
  }

  // Returns the blocks of a stage that are computed again together with `block`; empty if it keeps
  // its activations.
  RecomputedBlocks group_of(const OwnStage& s, int block) const {
    switch (spec_.recompute) {
      case Recompute::kNone:
        break;
      case Recompute::kBlocks:
        return {block, block + 1};
      case Recompute::kStages:
        return {first_trained(s), s.end};
      case Recompute::kUnits:
        for (const auto& [first, end] : spec_.recomputed) {
          if (first <= block && block < end)
            return {std::max(first, first_trained(s)), std::min(end, s.end)};
        }
    }
    return {block, block};
  }

  Save saved_by(const OwnStage& s, int block, bool backward_next) const {
    if (spec_.forward_only || block < trained_.backward_from) return Save::kNothing;
    const auto [first, end] = group_of(s, block);
    if (first == end || (backward_next && end == s.end)) return Save::kAll;
    return block == first ? Save::kInput : Save::kNothing;
  }

  // Returns the first block of a stage that runs backward.
  int first_trained(const OwnStage& s) const { return std::max(s.first, trained_.backward_from); }

  // The last group is recomputed while the gradient of the output is in flight. If another rank
  // waits for the gradient of the stage's input, that gradient is computed and sent before the
  // gradients of weights, which only this rank needs.
  void backward(const StageStep& step) {
    const OwnStage& s = stage(step);
    const int last = s.end - 1;
    const bool sends = s.receives() && passes_gradient(s);
    const bool split = sends || step.op == StageOp::kBackwardInput;
    const bool kept = kept_ == StageStep{StageOp::kForward, step.stage, step.micro};
    const auto recompute = [&](const RecomputedBlocks& group) {
      for (int b = group.first; b < group.end; ++b)
        ops_.push_back({.kind = ActionKind::kRecompute, .block = b, .micro = step.micro});
    };
    if (!kept) recompute(group_of(s, last));
    if (s.sends()) {
      message(ActionKind::kWaitCarryGrad, step, s.to);
      message(ActionKind::kFreeCarry, step, s.to);
    }
    for (int b = last; b >= first_trained(s); --b) {
      if (const RecomputedBlocks group = group_of(s, b); b != last && group.end == b + 1)
        recompute(group);
      ops_.push_back({.kind = split ? ActionKind::kBackwardInput : ActionKind::kBackward,
                      .block = b,
                      .micro = step.micro});
    }
    if (sends) {
      make_room(ActionKind::kFreeCarryGrad, step, s.from);
      message(ActionKind::kSendCarryGrad, step, s.from);
    }
    if (split && step.op == StageOp::kBackward) backward_weight(step);
  }

  void backward_weight(const StageStep& step) {
    const OwnStage& s = stage(step);
    for (int b = s.end - 1; b >= first_trained(s); --b) {
      ops_.push_back({.kind = ActionKind::kBackwardWeight, .block = b, .micro = step.micro});
    }
  }

  // Notes that a message, for which no later action waits, is about to be sent.
  void free_at_end(ActionKind free, const StageStep& step, int peer) {
    under_way_.push_back({.kind = free, .micro = step.micro, .stage = step.stage, .peer = peer});
  }

  // The same, but if two gradients of this stage are in flight, waits for the older one first.
  void make_room(ActionKind free, const StageStep& step, int peer) {
    const auto of_stage = [&](const Action& a) { return a.stage == step.stage; };
    const auto oldest = std::find_if(under_way_.begin(), under_way_.end(), of_stage);
    if (in_step_ && std::count_if(under_way_.begin(), under_way_.end(), of_stage) == 2) {
      ops_.push_back(*oldest);
      under_way_.erase(oldest);
    }
    free_at_end(free, step, peer);
  }

  void free_oldest() {
    ops_.push_back(under_way_.front());
    under_way_.erase(under_way_.begin());
  }

  const StepSpec& spec_;
  const std::vector<OwnStage> stages_;
  const TrainedBlocks trained_;
  const bool in_step_;
  std::vector<StageStep> order_;
  // The latest forward, if its backward follows at once.
  StageStep kept_{StageOp::kForward, -1, -1};
  std::vector<Action> under_way_;  // the Free actions of what was sent, oldest first
  std::vector<Action> ops_;
};

}  // namespace

std::vector<Action> list_computation(const StepSpec& spec) {
  return Computation(spec).list();
}

}  // namespace yoke::mesh
