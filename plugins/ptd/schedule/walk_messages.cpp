// The part of the walk about messages between stages: a state machine for each stage and
// micro-batch. What is sent must exist, what is used must have been waited for, and what was sent
// stays until it is freed.
#include <algorithm>

#include "plugins/ptd/schedule/walk.hpp"

namespace yoke::ptd {

std::string Walk::receive(Message& state, const Action& a) {
  const bool waits = a.kind == ActionKind::kWaitCarry || a.kind == ActionKind::kWaitCarryGrad;
  if (state != (waits ? Message::kUnderWay : Message::kNone))
    return fail(CheckedRule::kMessage, waits ? "nothing is being received" : "has run before");
  state = waits ? Message::kDone : Message::kUnderWay;
  return "";
}

// Checks one of the eight actions on messages. What it sends must exist, and what was sent stays
// until it is freed.
std::string Walk::message(const Action& a) {
  const auto own = std::find_if(
      stages_.begin(), stages_.end(), [&](const OwnStage& s) { return s.index == a.stage; });
  if (own == stages_.end()) return fail(CheckedRule::kMessage, "the stage is not on this rank");
  const int stage = static_cast<int>(own - stages_.begin());
  StageState& state = messages_[a.micro * stages_.size() + stage];
  const bool up = a.kind == ActionKind::kSendCarry || a.kind == ActionKind::kFreeCarry ||
                  a.kind == ActionKind::kReceiveCarryGrad || a.kind == ActionKind::kWaitCarryGrad;
  const int peer = up ? own->to : own->from;
  if (peer != a.peer || peer == OwnStage::kNoRank || peer == spec_.pipeline.rank)
    return fail(CheckedRule::kMessage, "there is no such neighbour");
  switch (a.kind) {
    case ActionKind::kSendCarry:
      if (!ran_forward(stage, a.micro) || state.carry_out != Message::kNone)
        return fail(CheckedRule::kMessage, "the stage has not run forward, or has sent already");
      state.carry_out = Message::kUnderWay;
      return "";
    case ActionKind::kSendCarryGrad:
      if (!ran_backward(stage, a.micro) || state.grad_out != Message::kNone)
        return fail(CheckedRule::kMessage, "the stage has not run backward, or has sent already");
      if (own->first < trained_.gradient_from)
        return fail(CheckedRule::kMessage, "no block before the stage is trained");
      state.grad_out = Message::kUnderWay;
      return "";
    case ActionKind::kFreeCarry:
    case ActionKind::kFreeCarryGrad: {
      Message& sent = a.kind == ActionKind::kFreeCarry ? state.carry_out : state.grad_out;
      if (sent != Message::kUnderWay) return fail(CheckedRule::kMessage, "nothing was sent");
      sent = Message::kDone;
      return "";
    }
    case ActionKind::kReceiveCarry:
    case ActionKind::kWaitCarry:
      return receive(state.carry_in, a);
    default:
      return receive(state.grad_in, a);
  }
}

// Returns "" if the exchange of every message that the neighbours expect, or send, is complete.
std::string Walk::messages_done() const {
  for (size_t i = 0; i < messages_.size(); ++i) {
    const OwnStage& s = stages_[i % stages_.size()];
    const auto wanted = [&](bool there, int peer) {
      const bool remote = peer != OwnStage::kNoRank && peer != spec_.pipeline.rank;
      return there && remote ? Message::kDone : Message::kNone;
    };
    const bool backward = s.end > trained_.backward_from;
    const bool passes = s.first >= trained_.gradient_from;
    const StageState expected{.carry_in = wanted(true, s.from),
                              .carry_out = wanted(true, s.to),
                              .grad_in = wanted(backward, s.to),
                              .grad_out = wanted(backward && passes, s.from)};
    if (messages_[i] != expected)
      return "the messages of stage " + std::to_string(s.index) + " are not complete";
  }
  return "";
}

}  // namespace yoke::ptd
