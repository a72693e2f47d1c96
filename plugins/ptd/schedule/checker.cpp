#include "plugins/ptd/schedule/checker.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "plugins/ptd/schedule/walk.hpp"

namespace yoke::ptd {
namespace {

// A communicator: its purpose and which of the parallel groups it is.
using Comm = std::pair<ActionKind, int>;

bool is_collective(ActionKind kind) {
  return kind == ActionKind::kUnshard || kind == ActionKind::kReduceGrad ||
         kind == ActionKind::kAllReduceGrad || kind == ActionKind::kReduceLoss ||
         kind == ActionKind::kReduceScalars;
}

// The collective that a waiting action waits for.
ActionKind awaited(ActionKind kind) {
  switch (kind) {
    case ActionKind::kWaitUnshard:
      return ActionKind::kUnshard;
    case ActionKind::kWaitReduce:
      return ActionKind::kReduceGrad;
    case ActionKind::kWaitGrad:
      return ActionKind::kAllReduceGrad;
    default:
      return kind;  // ReduceLoss and ReduceScalars wait for themselves
  }
}

bool waits(ActionKind kind) {
  return awaited(kind) != kind || kind == ActionKind::kReduceLoss ||
         kind == ActionKind::kReduceScalars;
}

// Runs all lists side by side: a collective is over when every rank of its communicator has issued
// it.
class Ranks {
 public:
  Ranks(const StepSpec& spec, const std::vector<std::vector<Action>>& lists)
      : spec_(spec), lists_(lists), next_(lists.size(), 0), issued_(lists.size()) {}

  std::vector<Finding> run() {
    bool moved = true;
    while (moved && findings_.empty()) {
      moved = false;
      for (int rank = 0; rank < static_cast<int>(lists_.size()); ++rank) moved |= advance(rank);
    }
    if (findings_.empty()) report_stuck();
    return findings_;
  }

 private:
  struct Issued {
    const Action* action;
    int index;
  };

  Comm comm_of(int rank, ActionKind kind) const {
    switch (kind) {
      case ActionKind::kUnshard:
      case ActionKind::kReduceGrad:
        return {kind, rank / spec_.shards};
      case ActionKind::kAllReduceGrad:
        return {kind, rank % spec_.shards};
      default:
        return {ActionKind::kReduceScalars, 0};
    }
  }

  // Runs the rank until it has to wait. True if it got anywhere.
  bool advance(int rank) {
    const std::vector<Action>& list = lists_[rank];
    const size_t start = next_[rank];
    while (next_[rank] < list.size() && findings_.empty()) {
      const Action& a = list[next_[rank]];
      std::vector<Issued>& own = issued_[rank][comm_of(rank, awaited(a.kind))];
      const int index = static_cast<int>(next_[rank]);
      const bool reissued = !own.empty() && own.back().index == index;
      if (is_collective(a.kind) && !reissued) {
        own.push_back({&a, index});
        compare(rank, own.size() - 1);
      }
      if (waits(a.kind) && !is_over(rank, a)) break;
      ++next_[rank];
    }
    return next_[rank] != start;
  }

  // The collective that `a` waits for has been issued by every rank of the communicator.
  bool is_over(int rank, const Action& a) {
    const Comm comm = comm_of(rank, awaited(a.kind));
    const std::vector<Issued>& own = issued_[rank][comm];
    size_t position = own.size();
    while (position > 0 && own[position - 1].action->unit != a.unit) --position;
    for (int peer = 0; peer < static_cast<int>(lists_.size()); ++peer) {
      if (comm_of(peer, awaited(a.kind)) == comm && issued_[peer][comm].size() < position)
        return false;
    }
    return true;
  }

  // Compares the rank's newest collective with those that peers issued at the same place.
  void compare(int rank, size_t position) {
    const ActionKind kind = lists_[rank][next_[rank]].kind;
    const Comm comm = comm_of(rank, kind);
    const Issued mine = issued_[rank][comm][position];
    for (int peer = 0; peer < static_cast<int>(lists_.size()); ++peer) {
      const std::vector<Issued>& theirs = issued_[peer][comm];
      if (comm_of(peer, kind) != comm || theirs.size() <= position) continue;
      if (*theirs[position].action == *mine.action) continue;
      findings_.push_back({rank,
                           mine.index,
                           Rule::kPairing,
                           to_string(*mine.action) + " meets " +
                               to_string(*theirs[position].action) + " of rank " +
                               std::to_string(peer)});
      return;
    }
  }

  void report_stuck() {
    for (int rank = 0; rank < static_cast<int>(lists_.size()); ++rank) {
      if (next_[rank] == lists_[rank].size()) continue;
      findings_.push_back({rank,
                           static_cast<int>(next_[rank]),
                           Rule::kDeadlock,
                           to_string(lists_[rank][next_[rank]]) + " waits for a peer for ever"});
    }
  }

  const StepSpec& spec_;
  const std::vector<std::vector<Action>>& lists_;
  std::vector<size_t> next_;                                 // of each rank
  std::vector<std::map<Comm, std::vector<Issued>>> issued_;  // of each rank
  std::vector<Finding> findings_;
};

}  // namespace

std::vector<Finding> check_rank(const StepSpec& spec, const std::vector<Action>& list, int rank) {
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

std::vector<Finding> check_ranks(const StepSpec& spec,
                                 const std::vector<std::vector<Action>>& lists) {
  std::vector<Finding> findings;
  for (int rank = 0; rank < static_cast<int>(lists.size()); ++rank) {
    for (Finding& f : check_rank(spec, lists[rank], rank)) findings.push_back(std::move(f));
  }
  for (Finding& f : Ranks(spec, lists).run()) findings.push_back(std::move(f));
  return findings;
}

std::vector<int64_t> memory_bytes(const StepSpec& spec, const std::vector<Action>& list) {
  Walk walk(spec);
  std::vector<int64_t> bytes;
  int64_t before = 0;
  for (const Action& a : list) {
    walk.apply(a);
    // What an action frees still exists while it runs.
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
