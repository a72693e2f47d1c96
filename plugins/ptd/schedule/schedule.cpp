#include "plugins/ptd/schedule/schedule.hpp"

#include <algorithm>
#include <utility>

namespace yoke::ptd {
namespace {

constexpr int kNone = -1;

bool is_compute(ActionKind kind) {
  return kind == ActionKind::kForward || kind == ActionKind::kRecompute ||
         kind == ActionKind::kBackward;
}

bool contains(const std::vector<int>& list, int value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

// Forward, Recompute and Backward of all micro-batches: the step of a single rank.
std::vector<Action> list_computation(const StepSpec& spec) {
  std::vector<Action> ops;
  const int blocks = static_cast<int>(spec.blocks.size());
  const int first = spec.forward_only ? blocks : static_cast<int>(spec.first_trained_block());
  for (int m = 0; m < spec.micros; ++m) {
    for (int b = 0; b < blocks; ++b) {
      // The last block's backward follows at once, so recomputing it would save nothing.
      const bool save = b >= first && (!spec.recompute || b == blocks - 1);
      ops.push_back({.kind = ActionKind::kForward, .block = b, .micro = m, .save = save});
    }
    for (int b = blocks - 1; b >= first; --b) {
      if (spec.recompute && b < blocks - 1) {
        ops.push_back({.kind = ActionKind::kRecompute, .block = b, .micro = m});
      }
      ops.push_back({.kind = ActionKind::kBackward, .block = b, .micro = m});
    }
  }
  return ops;
}

// Wraps the communication round the computation.
class Builder {
 public:
  explicit Builder(const StepSpec& spec) : spec_(spec), ops_(list_computation(spec)) {
    starts_.resize(ops_.size());
    ends_.resize(ops_.size());
    complete_.resize(ops_.size());
    in_use_.resize(spec.units.size(), false);
    for (int u = 0; u < static_cast<int>(spec.units.size()); ++u) {
      if (spec.shards > 1) find_intervals(u);
      if (spec.units[u].trainable && !spec.forward_only) find_complete_gradients(u);
    }
  }

  std::vector<Action> build() {
    for (size_t i = 0; i < ops_.size(); ++i) {
      unshard_before(i);
      if (ops_[i].kind == ActionKind::kBackward && uses(i, reducing_.first)) wait_reduce();
      out_.push_back(ops_[i]);
      reshard_after(i);
      for (int u : complete_[i]) reduce(u, ops_[i].micro);
    }
    wait_reduce();
    wait_grad();
    if (spec_.forward_only) {
      out_.push_back({.kind = ActionKind::kReduceLoss});
    } else {
      if (spec_.reduce_partial_grads) out_.push_back({.kind = ActionKind::kReducePartialGrads});
      out_.push_back({.kind = ActionKind::kReduceScalars});
      out_.push_back({.kind = ActionKind::kUpdate});
    }
    return std::move(out_);
  }

 private:
  bool uses(size_t op, int unit) const { return contains(spec_.blocks[ops_[op].block], unit); }

  // Splits the uses of a unit into intervals in which it stays whole.
  void find_intervals(int unit) {
    size_t last = 0;
    bool used = false;
    for (size_t i = 0; i < ops_.size(); ++i) {
      if (!uses(i, unit)) continue;
      const bool keep = used && (!spec_.reshard_after_forward || i == last + 1);
      if (!keep) {
        if (used) ends_[last].push_back(unit);
        starts_[i].push_back(unit);
      }
      used = true;
      last = i;
    }
    if (used) ends_[last].push_back(unit);
  }

  // After which operation of each micro-batch the unit's gradients are complete. A tied parameter
  // is complete when the first of its blocks, the last in backward, has run.
  void find_complete_gradients(int unit) {
    std::vector<int> last(spec_.micros, kNone);
    for (size_t i = 0; i < ops_.size(); ++i) {
      if (ops_[i].kind == ActionKind::kBackward && uses(i, unit))
        last[ops_[i].micro] = static_cast<int>(i);
    }
    for (int op : last) complete_[op].push_back(unit);
  }

  void unshard(int unit) {
    out_.push_back(
        {.kind = ActionKind::kUnshard, .unit = unit, .bytes = spec_.units[unit].param_bytes});
    in_use_[unit] = true;
  }

  // Waits for what operation i needs and starts gathering what comes next, so that the gather runs
  // beside the computation.
  void unshard_before(size_t i) {
    if (starts_[i].empty()) return;
    for (int u : starts_[i]) {
      if (!in_use_[u]) unshard(u);
    }
    for (int u : starts_[i]) out_.push_back({.kind = ActionKind::kWaitUnshard, .unit = u});
    size_t next = i + 1;
    while (next < ops_.size() && starts_[next].empty()) ++next;
    prefetch_ = next < ops_.size() ? starts_[next] : std::vector<int>{};
    for (int u : prefetch_) {
      if (!in_use_[u]) unshard(u);
    }
  }

  void reshard_after(size_t i) {
    for (int u : ends_[i]) {
      out_.push_back(
          {.kind = ActionKind::kReshard, .unit = u, .bytes = spec_.units[u].param_bytes});
      in_use_[u] = false;
      if (contains(prefetch_, u)) unshard(u);
    }
  }

  // One reduction is on its way at a time: a second one would only hold a second buffer.
  void reduce(int unit, int micro) {
    const bool last = micro == spec_.micros - 1;
    if (spec_.shards > 1) {
      if (!last && spec_.accumulate == Accumulate::kUnsharded) return;
      wait_reduce();
      out_.push_back({.kind = ActionKind::kReduceGrad,
                      .unit = unit,
                      .micro = micro,
                      .bytes = spec_.units[unit].grad_bytes});
      reducing_ = {unit, micro};
    } else if (last) {
      all_reduce_grad(unit);
    }
  }

  void wait_reduce() {
    const auto [unit, micro] = std::exchange(reducing_, {kNone, kNone});
    if (unit == kNone) return;
    out_.push_back({.kind = ActionKind::kWaitReduce,
                    .unit = unit,
                    .micro = micro,
                    .bytes = spec_.units[unit].grad_bytes});
    // Replicas add up shards once per step, whatever is accumulated before.
    if (micro == spec_.micros - 1) all_reduce_grad(unit);
  }

  void all_reduce_grad(int unit) {
    if (spec_.replicas == 1) return;
    wait_grad();
    out_.push_back({.kind = ActionKind::kAllReduceGrad,
                    .unit = unit,
                    .bytes = spec_.units[unit].grad_bytes / spec_.shards});
    all_reducing_ = unit;
  }

  void wait_grad() {
    const int unit = std::exchange(all_reducing_, kNone);
    if (unit != kNone) out_.push_back({.kind = ActionKind::kWaitGrad, .unit = unit});
  }

  const StepSpec& spec_;
  std::vector<Action> ops_;
  std::vector<std::vector<int>> starts_;    // units that become whole for this operation
  std::vector<std::vector<int>> ends_;      // units that are not needed after it
  std::vector<std::vector<int>> complete_;  // units whose gradients are complete after it
  std::vector<bool> in_use_;                // gathered, or on the way
  std::vector<int> prefetch_;               // units of the next gather
  std::pair<int, int> reducing_{kNone, kNone};
  int all_reducing_ = kNone;
  std::vector<Action> out_;
};

// A unit that is gathered again before anything has run in between stays whole instead: the memory
// is the same, the gather is saved.
std::vector<Action> drop_round_trips(std::vector<Action> list) {
  std::vector<bool> drop(list.size(), false);
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i].kind != ActionKind::kReshard) continue;
    size_t again = i + 1;
    while (again < list.size() && !is_compute(list[again].kind) &&
           !(list[again].kind == ActionKind::kUnshard && list[again].unit == list[i].unit)) {
      ++again;
    }
    if (again == list.size() || is_compute(list[again].kind)) continue;
    size_t wait = again;
    while (!(list[wait].kind == ActionKind::kWaitUnshard && list[wait].unit == list[i].unit))
      ++wait;
    drop[i] = drop[again] = drop[wait] = true;
  }
  std::vector<Action> kept;
  for (size_t i = 0; i < list.size(); ++i) {
    if (!drop[i]) kept.push_back(list[i]);
  }
  return kept;
}

const char* name(ActionKind kind) {
  switch (kind) {
    case ActionKind::kUnshard:
      return "Unshard";
    case ActionKind::kWaitUnshard:
      return "WaitUnshard";
    case ActionKind::kReshard:
      return "Reshard";
    case ActionKind::kForward:
      return "Forward";
    case ActionKind::kRecompute:
      return "Recompute";
    case ActionKind::kBackward:
      return "Backward";
    case ActionKind::kReduceGrad:
      return "ReduceGrad";
    case ActionKind::kWaitReduce:
      return "WaitReduce";
    case ActionKind::kAllReduceGrad:
      return "AllReduceGrad";
    case ActionKind::kWaitGrad:
      return "WaitGrad";
    case ActionKind::kReducePartialGrads:
      return "ReducePartialGrads";
    case ActionKind::kReduceLoss:
      return "ReduceLoss";
    case ActionKind::kReduceScalars:
      return "ReduceScalars";
    case ActionKind::kUpdate:
      return "Update";
  }
  return "unknown action";
}

}  // namespace

bool StepSpec::block_trains(size_t block) const {
  return std::any_of(
      blocks[block].begin(), blocks[block].end(), [&](int u) { return units[u].trainable; });
}

size_t StepSpec::first_trained_block() const {
  size_t b = 0;
  while (b < blocks.size() && !block_trains(b)) ++b;
  return b;
}

std::vector<Action> build_schedule(const StepSpec& spec) {
  return drop_round_trips(Builder(spec).build());
}

std::string to_string(const Action& action) {
  std::string text = name(action.kind);
  if (action.unit >= 0) text += " unit " + std::to_string(action.unit);
  if (action.block >= 0) text += " block " + std::to_string(action.block);
  if (action.micro >= 0) text += " micro " + std::to_string(action.micro);
  if (action.save) text += " save";
  if (action.bytes > 0) text += ", " + std::to_string(action.bytes) + " bytes";
  return text;
}

}  // namespace yoke::ptd
