// There are two kinds of check. Walk (walk.cpp) follows one rank's list as a state machine per unit
// and block. Ranks, below, runs all lists side by side and looks only at collectives: whether the
// members of a communicator issue the same ones in the same order, and whether all ranks reach the
// end of their lists.
//
// One simulation is enough. Other interleavings of the ranks need not be tried, because the outcome
// does not depend on the order in which ranks advance: a rank only ever waits for collectives, and
// a collective that was issued stays issued.
#include "plugins/ptd/schedule/checker.hpp"

#include <algorithm>
#include <compare>
#include <map>
#include <utility>

#include "plugins/ptd/schedule/walk.hpp"

namespace yoke::ptd {
namespace {

// Identifies one communicator of the world: its purpose, and its index among the communicators of
// that purpose.
struct CommKey {
  CommPurpose purpose;
  int index;

  auto operator<=>(const CommKey&) const = default;
};

// Runs all lists side by side. A collective is over when every rank of its communicator has issued
// it.
class Ranks {
 public:
  Ranks(const StepSpec& spec, const std::vector<std::vector<Action>>& lists)
      : spec_(spec),
        lists_(lists),
        tp_(std::max(1, static_cast<int>(lists.size()) / (spec.shards * spec.replicas))),
        next_(lists.size(), 0),
        issued_(lists.size()) {}

  std::vector<ScheduleFault> run() {
    bool moved = true;
    while (moved && faults_.empty()) {
      moved = false;
      for (int rank = 0; rank < static_cast<int>(lists_.size()); ++rank) moved |= advance(rank);
    }
    if (faults_.empty()) report_stuck();
    return faults_;
  }

 private:
  struct Issued {
    const Action* action;
    int index;  // position in the rank's list
  };

  // Ranks with the same key are members of one communicator: they differ only in the coordinate
  // along which it runs. rank = (replica * shards + shard) * tp + t.
  CommKey comm_of(int rank, CommPurpose purpose) const {
    const int t = rank % tp_, data = rank / tp_;
    switch (purpose) {
      case CommPurpose::kUnshard:
      case CommPurpose::kReduceGrad:
        return {purpose, data / spec_.shards * tp_ + t};
      case CommPurpose::kAllReduceGrad:
        return {purpose, data % spec_.shards * tp_ + t};
      case CommPurpose::kReducePartialGrads:
        return {purpose, data};
      case CommPurpose::kNone:
      case CommPurpose::kWorld:
        break;
    }
    return {CommPurpose::kWorld, 0};
  }

  // Runs the rank's list until it has to wait. Returns true if it completed at least one action.
  bool advance(int rank) {
    const std::vector<Action>& list = lists_[rank];
    const size_t start = next_[rank];
    while (next_[rank] < list.size() && faults_.empty()) {
      const Action& a = list[next_[rank]];
      issue(rank, a);
      if (!is_over(rank, a)) break;
      ++next_[rank];
    }
    return next_[rank] != start;
  }

  // Issues the action's collective, if it has one. A waiting rank tries the same action again
  // later; its collective must not be issued twice.
  void issue(int rank, const Action& a) {
    const CommPurpose purpose = info_of(a.kind).comm;
    if (purpose == CommPurpose::kNone) return;
    std::vector<Issued>& own = issued_[rank][comm_of(rank, purpose)];
    const int index = static_cast<int>(next_[rank]);
    if (!own.empty() && own.back().index == index) return;
    own.push_back({&a, index});
    compare_with_peers(rank, purpose, own.size() - 1);
  }

  // Returns true if every rank of the communicator has issued the collective that `a` waits for, or
  // if it waits for none.
  bool is_over(int rank, const Action& a) {
    const std::optional<ActionKind> awaited = info_of(a.kind).awaits;
    if (!awaited) return true;
    const CommPurpose purpose = info_of(*awaited).comm;
    const CommKey comm = comm_of(rank, purpose);
    const std::vector<Issued>& own = issued_[rank][comm];
    // `position` becomes the number of collectives up to and including the newest one of this unit.
    // Every member must have issued at least that many.
    size_t position = own.size();
    while (position > 0 && own[position - 1].action->unit != a.unit) --position;
    for (int peer = 0; peer < static_cast<int>(lists_.size()); ++peer) {
      if (comm_of(peer, purpose) == comm && issued_[peer][comm].size() < position) return false;
    }
    return true;
  }

  // Compares the rank's newest collective with those that peers issued at the same position.
  void compare_with_peers(int rank, CommPurpose purpose, size_t position) {
    const CommKey comm = comm_of(rank, purpose);
    const Issued mine = issued_[rank][comm][position];
    for (int peer = 0; peer < static_cast<int>(lists_.size()); ++peer) {
      const std::vector<Issued>& theirs = issued_[peer][comm];
      if (comm_of(peer, purpose) != comm || theirs.size() <= position) continue;
      if (*theirs[position].action == *mine.action) continue;
      faults_.push_back({rank,
                         mine.index,
                         CheckedRule::kPairing,
                         to_string(*mine.action) + " meets " + to_string(*theirs[position].action) +
                             " of rank " + std::to_string(peer)});
      return;
    }
  }

  void report_stuck() {
    for (int rank = 0; rank < static_cast<int>(lists_.size()); ++rank) {
      if (next_[rank] == lists_[rank].size()) continue;
      faults_.push_back({rank,
                         static_cast<int>(next_[rank]),
                         CheckedRule::kDeadlock,
                         to_string(lists_[rank][next_[rank]]) + " waits forever for a peer"});
    }
  }

  const StepSpec& spec_;
  const std::vector<std::vector<Action>>& lists_;
  int tp_;                                                      // ranks of tp
  std::vector<size_t> next_;                                    // next action, by rank
  std::vector<std::map<CommKey, std::vector<Issued>>> issued_;  // collectives so far, by rank
  std::vector<ScheduleFault> faults_;
};

}  // namespace

std::vector<ScheduleFault> check_rank(const StepSpec& spec,
                                      const std::vector<Action>& list,
                                      int rank) {
  Walk walk(spec);
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string wrong = walk.apply(list[i]);
    if (!wrong.empty())
      return {{rank, static_cast<int>(i), walk.rule(), to_string(list[i]) + ": " + wrong}};
  }
  const std::string missing = walk.finish();
  if (!missing.empty()) return {{rank, static_cast<int>(list.size()), walk.rule(), missing}};
  return {};
}

std::vector<ScheduleFault> check_ranks(const StepSpec& spec,
                                       const std::vector<std::vector<Action>>& lists) {
  std::vector<ScheduleFault> faults;
  for (int rank = 0; rank < static_cast<int>(lists.size()); ++rank) {
    for (ScheduleFault& f : check_rank(spec, lists[rank], rank)) faults.push_back(std::move(f));
  }
  for (ScheduleFault& f : Ranks(spec, lists).run()) faults.push_back(std::move(f));
  return faults;
}

std::vector<int64_t> memory_bytes(const StepSpec& spec, const std::vector<Action>& list) {
  Walk walk(spec);
  std::vector<int64_t> bytes;
  int64_t before = 0;
  for (const Action& a : list) {
    walk.apply(a);
    // The memory that an action frees still exists while it runs.
    bytes.push_back(std::max(before, walk.bytes()));
    before = walk.bytes();
  }
  return bytes;
}

int64_t peak_bytes(const StepSpec& spec, const std::vector<Action>& list) {
  const std::vector<int64_t> bytes = memory_bytes(spec, list);
  return bytes.empty() ? 0 : *std::max_element(bytes.begin(), bytes.end());
}

}  // namespace yoke::ptd
