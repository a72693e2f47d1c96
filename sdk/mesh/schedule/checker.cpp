// There are two kinds of check. Walk (walk.cpp) follows one rank's list as a state machine per unit
// and block. Ranks, below, runs all lists side by side and looks only at collectives and messages:
// whether the members of a communicator issue the same ones in the same order, and whether all
// ranks reach the end of their lists.
//
// One simulation is enough. Other interleavings of the ranks need not be tried, because the outcome
// does not depend on the order in which ranks advance: a rank only ever waits for what a peer has
// issued, and what was issued stays issued.
#include "sdk/mesh/schedule/checker.hpp"

#include <algorithm>
#include <compare>
#include <map>
#include <utility>

#include "sdk/mesh/schedule/message_comms.hpp"
#include "sdk/mesh/schedule/walk.hpp"

namespace yoke::mesh {
namespace {

// Identifies one communicator of the world: its purpose, and its index among the communicators of
// that purpose.
struct CommKey {
  CommPurpose purpose;
  int index;

  auto operator<=>(const CommKey&) const = default;
};

// One direction between two ranks, for one of the two kinds of messages.
struct Link {
  int from, to;
  bool grads;  // gradients; false: outputs of stages

  auto operator<=>(const Link&) const = default;
};

// A message on its link. It is identified by the later of the two stages that it connects.
struct Message {
  Link link;
  int stage, micro;  // micro: kHeader for the description of an output

  bool operator==(const Message&) const = default;
};
constexpr int kHeader = -1;

// The messages that a rank sends and receives in one communicator, in the order in which it issues
// them. c10d puts them on one stream, so only the first that is not over can be carried out.
struct Queue {
  std::vector<Message> issued;
  std::vector<int> actions;  // the index of the action of each of them in the rank's list
  size_t over = 0;           // the number of messages that are over

  bool is_empty() const { return over == issued.size(); }
  const Message& head() const { return issued[over]; }
  bool has(const Message& m) const {
    return std::find(issued.begin(), issued.end(), m) != issued.end();
  }
  bool is_over(const Message& m) const {
    const auto end = issued.begin() + static_cast<long>(over);
    return std::find(issued.begin(), end, m) != end;
  }
};

// Runs all lists side by side. A collective is over when every rank of its communicator has issued
// it, and a message when it is the head of the queues of both ranks.
class Ranks {
 public:
  // receive_late: a message is received from its Wait action on, not from its Receive action on,
  // and before the first output of a stage both ranks wait for its header.
  Ranks(const std::vector<StepSpec>& specs,
        const std::vector<std::vector<Action>>& lists,
        bool receive_late)
      : receive_late_(receive_late),
        spec_(specs.front()),
        lists_(lists),
        per_stage_(static_cast<int>(lists.size() / specs.size())),
        tp_(std::max(1, per_stage_ / (spec_.shards * spec_.replicas))),
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
  // along which it runs. rank = ((pp * replicas + replica) * shards + shard) * tp + t.
  CommKey comm_of(int rank, CommPurpose purpose) const {
    const int first = rank / per_stage_ * per_stage_;  // first rank with the same stages
    const int t = rank % tp_, data = (rank - first) / tp_;
    switch (purpose) {
      case CommPurpose::kUnshard:
      case CommPurpose::kReduceGrad:
        return {purpose, first + data / spec_.shards * tp_ + t};
      case CommPurpose::kAllReduceGrad:
        return {purpose, first + data % spec_.shards * tp_ + t};
      case CommPurpose::kReducePartialGrads:
        return {purpose, first + data};
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
      if (a.kind == ActionKind::kExchangeTied) {
        if (!exchange(rank, a)) break;
      } else if (const auto message = info_of(a.kind).message) {
        if (!pass(rank, a, *message)) break;
      } else {
        issue(rank, a);
        if (!is_over(rank, a)) break;
      }
      ++next_[rank];
    }
    return next_[rank] != start;
  }

  // Returns true once the peer has reached the same exchange. Both ranks make their exchanges in
  // the same order, so the n-th exchange of one is the n-th of the other.
  bool exchange(int rank, const Action& a) {
    const int peer = rank % per_stage_ + a.peer * per_stage_;
    const int index = static_cast<int>(next_[rank]);
    std::vector<int>& own = exchanges_[{rank, peer}];
    if (own.empty() || own.back() != index) own.push_back(index);
    return exchanges_[{peer, rank}].size() >= own.size();
  }

  // Carries out an action on a message. Returns false if it has to wait for the peer.
  bool pass(int rank, const Action& a, const MessageInfo& info) {
    const int peer = rank % per_stage_ + a.peer * per_stage_;
    const Link link = info.is_sent() ? Link{rank, peer, info.grad} : Link{peer, rank, info.grad};
    const Message message{link, a.stage + (info.is_at_output() ? 1 : 0), a.micro};
    const Queue& own = queue_of(rank, link);
    const bool receives_now =
        info.step == (receive_late_ ? MessageInfo::kWait : MessageInfo::kReceive);
    if ((info.step == MessageInfo::kSend || receives_now) && !own.has(message)) {
      const Message header{link, message.stage, kHeader};
      if (receive_late_ && !info.grad) {
        if (!own.has(header)) issue(rank, header);
        if (!own.is_over(header)) return false;
      }
      issue(rank, message);
    }
    return info.step == MessageInfo::kSend || info.step == MessageInfo::kReceive ||
           own.is_over(message);
  }

  Queue& queue_of(int rank, const Link& link) {
    const int ranks = static_cast<int>(lists_.size()) / per_stage_;
    const int comm = message_comm(link.from / per_stage_, link.to / per_stage_, link.grads, ranks);
    return queues_[{rank, comm}];
  }

  void issue(int rank, const Message& message) {
    Queue& own = queue_of(rank, message.link);
    own.issued.push_back(message);
    own.actions.push_back(static_cast<int>(next_[rank]));
    carry_out(rank, own);
  }

  // Carries out all messages that can be, beginning with those of a rank, up to the first fault.
  void carry_out(int rank, Queue& own) {
    while (!own.is_empty() && faults_.empty()) {
      const Message head = own.head();
      const int peer = rank == head.link.from ? head.link.to : head.link.from;
      Queue& theirs = queue_of(peer, head.link);
      if (theirs.is_empty() || theirs.head().link != head.link) return;
      if (theirs.head() != head) {
        const int action = own.actions[own.over];
        faults_.push_back({rank,
                           action,
                           CheckedRule::kPairing,
                           to_string(lists_[rank][action]) + " meets another message"});
        return;
      }
      ++own.over;
      ++theirs.over;
      carry_out(peer, theirs);
    }
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

  const bool receive_late_;
  const StepSpec& spec_;  // spec of the first stage; shards and replicas are the same for all
  const std::vector<std::vector<Action>>& lists_;
  int per_stage_;                                // ranks with the same stages
  int tp_;                                       // ranks of tp
  std::map<std::pair<int, int>, Queue> queues_;  // key: rank and message_comm()
  // For each rank and peer, the exchanges that the rank has reached, as indices in its list.
  std::map<std::pair<int, int>, std::vector<int>> exchanges_;
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

std::vector<ScheduleFault> check_ranks(const std::vector<StepSpec>& specs,
                                       const std::vector<std::vector<Action>>& lists) {
  std::vector<ScheduleFault> faults;
  const size_t per_stage = lists.size() / specs.size();
  for (size_t rank = 0; rank < lists.size(); ++rank) {
    for (ScheduleFault& f :
         check_rank(specs[rank / per_stage], lists[rank], static_cast<int>(rank)))
      faults.push_back(std::move(f));
  }
  // In the first step receives start late, because the shapes of messages are not known yet, and
  // with comm.check = full in every step.
  for (const bool receive_late : {false, true}) {
    for (ScheduleFault& f : Ranks(specs, lists, receive_late).run()) faults.push_back(std::move(f));
    if (!faults.empty()) return faults;
  }
  return faults;
}

}  // namespace yoke::mesh
