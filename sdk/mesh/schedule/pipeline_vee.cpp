// A rank has one stage on the way down, `a`, and one on the way up, `b`. Rank 0 has the first and
// the last stage, so that the first backward can begin where the first forward began, and all ranks
// hold about the same number of activations.
//
// zb_v and dual_pipe_v are written down phase by phase, as in their papers. v_half and v_min repeat
// a pattern of six time slots for each micro-batch; the offsets of its four operations decide how
// many micro-batches are in flight, and gradients of weights fill the slots that stay free.
#include "sdk/mesh/schedule/pipeline_vee.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

namespace yoke::mesh {
namespace {

// Writes an order down. Each operation of a stage gets the next micro-batch.
class Writer {
 public:
  Writer(int rank, int ranks, int micros) : a(rank), b(2 * ranks - 1 - rank), micros_(micros) {}

  const int a, b;

  void forward(int stage) { add(StageOp::kForward, stage); }
  void backward(int stage) {
    add(StageOp::kBackward, stage);
    ++next_[{StageOp::kBackwardInput, stage}];
  }
  void input(int stage) {
    const int micro = add(StageOp::kBackwardInput, stage);
    ++next_[{StageOp::kBackward, stage}];
    pending_.emplace_back(stage, micro);
  }
  // The next weight gradient of a stage, or the oldest that is pending.
  void weight(int stage) { weight_at(find_pending(stage)); }
  void oldest_weight() {
    if (!pending_.empty()) weight_at(pending_.begin());
  }
  void all_weights() {
    while (!pending_.empty()) oldest_weight();
  }
  void all_weights(int stage) {
    while (find_pending(stage) != pending_.end()) weight(stage);
  }
  int done(StageOp op, int stage) { return next_[{op, stage}]; }

  // Returns the order without the micro-batches from `micros` on, which a fixed pattern may have.
  std::vector<StageStep> take() {
    std::vector<StageStep> order;
    for (const StageStep& step : order_) {
      if (step.micro < micros_) order.push_back(step);
    }
    return order;
  }

 private:
  using Pending = std::vector<std::pair<int, int>>;

  int add(StageOp op, int stage) {
    const int micro = next_[{op, stage}]++;
    order_.push_back({op, stage, micro});
    return micro;
  }
  Pending::iterator find_pending(int stage) {
    return std::find_if(
        pending_.begin(), pending_.end(), [&](const auto& p) { return p.first == stage; });
  }
  void weight_at(Pending::iterator at) {
    order_.push_back({StageOp::kBackwardWeight, at->first, at->second});
    pending_.erase(at);
  }

  int micros_;
  std::map<std::pair<StageOp, int>, int> next_;
  Pending pending_;  // stages and micro-batches that wait for their weight gradients, oldest first
  std::vector<StageStep> order_;
};

// Where the four operations of micro-batch 0 lie in time; those of micro-batch i come 6 i slots
// later.
struct Offsets {
  int forward_a, forward_b, input_b, input_a;
};

std::vector<StageStep> repeat_pattern(int rank, int ranks, int micros, const Offsets& at) {
  Writer w(rank, ranks, micros);
  const std::array<std::pair<int, int>, 4> pattern{
      {{at.forward_a, 0}, {at.forward_b, 1}, {at.input_b, 2}, {at.input_a, 3}}};
  std::map<int, int> slots;  // time slot -> index in the pattern
  for (const auto& [offset, operation] : pattern) {
    for (int i = 0; i < micros; ++i) slots[offset + 6 * i] = operation;
  }
  const int last = slots.empty() ? -1 : slots.rbegin()->first;
  for (int t = 0; t <= last; ++t) {
    const auto slot = slots.find(t);
    if (slot == slots.end()) {
      w.oldest_weight();
    } else if (slot->second < 2) {
      w.forward(slot->second == 0 ? w.a : w.b);
    } else {
      w.input(slot->second == 2 ? w.b : w.a);
    }
  }
  w.all_weights();
  return w.take();
}

}  // namespace

std::vector<StageStep> zb_v(int rank, int ranks, int micros) {
  const int r = rank, p = ranks;
  const int n = std::max(2 * p - 1, micros);  // the phases below assume that many micro-batches
  Writer w(rank, ranks, micros);
  for (int i = 0; i < 2 * (p - r) - 1; ++i) w.forward(w.a);
  for (int i = 0; i < r; ++i) {
    w.forward(w.b);
    w.forward(w.a);
  }
  const auto turn = [&w](int stage) {
    w.input(stage);
    w.weight(stage);
  };
  for (int i = 0; i < p - r; ++i) {
    w.forward(w.b);
    turn(w.b);
  }
  const auto forwards = [&w](int stage) { return w.done(StageOp::kForward, stage); };
  while (forwards(w.b) < forwards(w.a) || forwards(w.a) < n) {
    if (forwards(w.a) < n) w.forward(w.a);
    turn(w.a);
    w.forward(w.b);
    turn(w.b);
  }
  for (int i = 0; i < r; ++i) {
    w.input(w.a);
    w.input(w.b);
  }
  for (int i = 0; i < p - r; ++i) turn(w.a);
  w.all_weights(w.b);
  w.all_weights(w.a);
  return w.take();
}

std::vector<StageStep> v_half(int rank, int ranks, int micros) {
  const int r = rank, p = ranks, gap = p % 2 == 0 ? 3 : 0;
  return repeat_pattern(
      r, p, micros, {2 * r, 3 * p - r - 2, 3 * p + gap + 2 * r - 1, 6 * p + gap - r - 2});
}

std::vector<StageStep> v_min(int rank, int ranks, int micros) {
  const int r = rank, p = ranks, gap = p % 3 == 0 ? 2 : 0;
  return repeat_pattern(r, p, micros, {r, 2 * p - r - 1, 2 * p + gap + r, 4 * p + gap - r - 1});
}

std::vector<StageStep> dual_pipe_v(int rank, int ranks, int micros) {
  const int r = rank, p = ranks;
  Writer w(rank, ranks, micros);
  for (int i = 0; i < 2 * (p - r - 1); ++i) w.forward(w.a);
  for (int i = 0; i < r + 1; ++i) {
    w.forward(w.a);
    w.forward(w.b);
  }
  for (int i = 0; i < p - r - 1; ++i) {
    w.input(w.b);
    w.oldest_weight();
    w.forward(w.b);
  }
  for (int i = 0; i < micros - 2 * p + r + 1; ++i) {
    w.forward(w.a);
    w.backward(w.b);
    w.forward(w.b);
    w.backward(w.a);
  }
  for (int i = 0; i < p - r - 1; ++i) {
    w.backward(w.b);
    w.forward(w.b);
    w.backward(w.a);
  }
  // From the middle of this phase on, gradients of weights are left for the end.
  bool split = false;
  const auto either = [&](int stage) { split ? w.input(stage) : w.backward(stage); };
  for (int i = 0; i < r + 1; ++i) {
    const bool middle = i == (r + 1) / 2;
    split = split || (middle && r % 2 == 1);
    either(w.b);
    split = split || (middle && r % 2 == 0);
    either(w.a);
  }
  for (int i = 0; i < p - r - 1; ++i) {
    w.oldest_weight();
    either(w.a);
  }
  w.all_weights();
  return w.take();
}

}  // namespace yoke::mesh
