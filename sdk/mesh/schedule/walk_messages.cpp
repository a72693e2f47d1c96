// The part of the walk about messages between stages: a state machine for each stage and
// micro-batch. What is sent must exist, what is used must have been waited for, and what was sent
// stays until it is freed.
#include <string>

#include "sdk/mesh/schedule/walk.hpp"

namespace yoke::mesh {

// Moves a message to its next state, or says why the action does not fit.
std::string Walk::advance(Message& state, MessageInfo::Step step) {
  const bool begins = step == MessageInfo::kSend || step == MessageInfo::kReceive;
  if (state != (begins ? Message::kNone : Message::kUnderWay)) {
    return fail(CheckedRule::kMessage, begins ? "has run before" : "the message is not under way");
  }
  state = begins ? Message::kUnderWay : Message::kDone;
  return "";
}

std::string Walk::message(const Action& a, const MessageInfo& info) {
  const size_t position = position_of(a.stage, stages_);
  if (position == stages_.size())
    return fail(CheckedRule::kMessage, "the stage is not on this rank");
  const OwnStage& stage = stages_[position];
  const bool output = info.is_at_output();
  if (!(output ? stage.sends() : stage.receives()) || a.peer != (output ? stage.to : stage.from))
    return fail(CheckedRule::kMessage, "there is no such neighbour");
  const int own = static_cast<int>(position);
  if (info.step == MessageInfo::kSend) {
    if (!(info.grad ? ran_backward(own, a.micro) : ran_forward(own, a.micro)))
      return fail(CheckedRule::kMessage, "what it sends has not been computed");
    if (info.grad && stage.first < trained_.gradient_from)
      return fail(CheckedRule::kMessage, "no block before the stage is trained");
  }
  StageState& state = messages_[a.micro * stages_.size() + position];
  Message& sent = info.grad ? state.grad_out : state.carry_out;
  Message& received = info.grad ? state.grad_in : state.carry_in;
  return advance(info.is_sent() ? sent : received, info.step);
}

// Returns "" if the exchange of every message that the neighbours expect, or send, is complete.
std::string Walk::messages_done() const {
  for (size_t i = 0; i < messages_.size(); ++i) {
    const OwnStage& s = stages_[i % stages_.size()];
    const auto wanted = [](bool there) { return there ? Message::kDone : Message::kNone; };
    const bool backward = s.end > trained_.backward_from;
    const bool passes = s.first >= trained_.gradient_from;
    const StageState expected{.carry_in = wanted(s.receives()),
                              .carry_out = wanted(s.sends()),
                              .grad_in = wanted(s.sends() && backward),
                              .grad_out = wanted(s.receives() && backward && passes)};
    if (messages_[i] != expected)
      return "the messages of stage " + std::to_string(s.index) + " are not complete";
  }
  return "";
}

}  // namespace yoke::mesh
