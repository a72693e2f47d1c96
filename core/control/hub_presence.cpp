// Decides when a rank is lost, and what the first cause of a failure was.
//
// The difficult part is the first cause. When a rank dies, the ranks that were exchanging data with
// it notice within microseconds and report that they lost a peer, often before the hub sees that
// the connection of the dead rank is closed. So such a report is only a suspicion: the hub waits
// kSuspicion for a better cause. A closed connection, a failure that a rank reports as its own, and
// silence are causes. The hub tells the first of them to all ranks, and ignores everything after it
// as a consequence.
//
// The hub itself may have been stopped (SIGSTOP, a suspended machine). When it continues, all
// members look silent, although it was the hub that did not listen. tick() notices the gap between
// its own calls and gives every member a new start.
#include <algorithm>

#include "core/base/text.hpp"
#include "core/control/hub_state.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kSuspicion{300};  // wait for a better cause than "lost a peer"
constexpr milliseconds kOwnGap{1000};    // longer without a tick: the hub itself was stopped

}  // namespace

void HubState::from_member(int connection, Connection& c, const Message& message, Time now) {
  Member& m = members_[c.rank];
  m.heard = now;
  const std::vector<std::string>& fields = message.fields;
  if (StoreState::handles(message.type)) {
    for (const StoreState::Answer& a : store_.handle(connection, message))
      send(a.connection, MessageType::kAnswer, {a.request, a.value});
  } else if (message.type == MessageType::kBeat && fields.size() == 4) {
    beat(m, c.rank, message);
  } else if (message.type == MessageType::kFailure && fields.size() == 3) {
    if (fields[0] == "0") {
      fail(concat(who(c.rank), " failed: ", fields[1]), /*hangs=*/false, fields[2]);
    } else if (suspicion_.empty() || (!suspicion_hangs_ && fields[0] == "2")) {
      // A rank that has waited too long closes its connections; those that this hits report first.
      suspicion_ = who(c.rank) + ": " + fields[1];
      suspicion_hangs_ = fields[0] == "2";
      suspicion_since_ = now;
    }
  } else if (message.type == MessageType::kGoodbye) {
    m.left = true;
  } else if (message.type == MessageType::kPost && fields.size() == 3) {
    post(connection, message);
  } else if (message.type == MessageType::kAck && fields.size() == 1) {
    acknowledged(number_in(fields[0]), connection);
  }
}

// A straggler is a note for rank 0, which reports it.
void HubState::beat(Member& m, int32_t rank, const Message& message) {
  m.step = number_in(message.fields[0]);
  m.collectives = number_in(message.fields[1]);
  m.pp_rank = number_in(message.fields[3]);
  const double seconds = static_cast<double>(number_in(message.fields[2])) / 1e6;
  const auto slow = stragglers_.take(rank, m.pp_rank, m.step, seconds);
  if (!slow || !present(members_[0])) return;
  send(members_[0].connection,
       MessageType::kNote,
       {"0", kStragglerNote, concat(slow->rank, " ", slow->factor, " ", slow->since)});
}

void HubState::tick(Time now) {
  if (now - last_tick_ > kOwnGap) {
    for (Member& m : members_) m.heard = now;
  }
  last_tick_ = now;
  handshakes_.tick(now, actions_);
  if (phase_ == Phase::kRunning) {
    if (options_.lost_after.count() > 0) check_silence(now);
    if (!suspicion_.empty() && now - suspicion_since_ > kSuspicion && !awaits_silence(now)) {
      fail(suspicion_ + (suspicion_hangs_ ? behind()
                                          : " (all ranks still answer: the network between two "
                                            "machines may be broken)"),
           suspicion_hangs_);
    }
  } else if (phase_ == Phase::kGathering && now - start_ > options_.join_timeout) {
    fail(concat(attendance(), "; gave up after ", seconds_text(options_.join_timeout)) +
         " (launch.join_timeout); see the output of the missing ranks");
  }
  if (now >= next_beat_) {
    next_beat_ = now + kBeat;
    send_all(MessageType::kBeat, {});
  }
}

// Returns true if a member has missed beats: it may be the cause of the suspicion, and will have
// been silent long enough soon. The peers of a member that is cut off report its closed data
// connections before it has been silent for lost_after.
bool HubState::awaits_silence(Time now) const {
  const milliseconds limit = options_.lost_after;
  if (limit.count() == 0 || now - suspicion_since_ > limit + kSuspicion) return false;
  return std::any_of(members_.begin(), members_.end(), [&](const Member& m) {
    return present(m) && !m.left && now - m.heard > 3 * kBeat;
  });
}

// A machine that is lost takes several ranks with it, whose last beats are up to one beat apart.
// All of them are named.
void HubState::check_silence(Time now) {
  const auto silence = [&](const Member& m) {
    return std::chrono::duration_cast<milliseconds>(now - m.heard);
  };
  const auto silent = [&](const Member& m, milliseconds limit) {
    return present(m) && !m.left && silence(m) > limit;
  };
  // A rank that answers is at most about one beat old.
  const milliseconds limit =
      std::max(options_.lost_after - 2 * kBeat, std::min(options_.lost_after, 2 * kBeat));
  milliseconds longest{0};
  std::vector<std::string> names;
  std::string state;
  for (int32_t r = 0; r < options_.world_size; ++r) {
    if (!silent(members_[r], limit)) continue;
    longest = std::max(longest, silence(members_[r]));
    names.push_back(who(r));
    state = state_of(members_[r]);
  }
  if (longest <= options_.lost_after) return;
  const bool one = names.size() == 1;
  fail(yoke::join(names) + (one ? " has" : " have") +
           string_printf(" not answered for %.1f s", static_cast<double>(longest.count()) / 1000) +
           (one ? state : "") + "; stopped, or cut off from rank 0 (" + options_.host +
           ") by the network",
       /*hangs=*/true);
}

void HubState::fail(const std::string& cause, bool hangs, const std::string& code) {
  if (phase_ == Phase::kFailed) return;
  phase_ = Phase::kFailed;
  reason_ = cause;
  send_all(MessageType::kLost, {cause, hangs ? "1" : "0", code});
}

bool HubState::finished() const {
  if (phase_ == Phase::kRefused) return static_cast<int32_t>(told_.size()) >= options_.world_size;
  return std::all_of(members_.begin(), members_.end(), [&](auto& m) {
    return !present(m) || m.left || phase_ == Phase::kFailed;
  });
}

std::string HubState::who(int32_t rank) const {
  const Member& m = members_[rank];
  return concat("rank ", rank, " (", m.host, ", process ", m.process, ")");
}

// Names the ranks that have issued fewer collectives than others of their pipeline stage: those are
// the ones that hang. The ranks of different stages never issue the same collectives.
std::string HubState::behind() const {
  std::map<int64_t, int64_t> most;  // pp rank -> collectives
  for (const Member& m : members_) most[m.pp_rank] = std::max(most[m.pp_rank], m.collectives);
  std::vector<std::string> names;
  for (int32_t r = 0; r < options_.world_size; ++r) {
    const Member& m = members_[r];
    if (m.collectives < most[m.pp_rank]) names.push_back(who(r) + state_of(m));
  }
  if (most.size() > 1) {
    return names.empty() ? "; the ranks of each pipeline stage have issued equally many collectives"
                         : "; behind: " + yoke::join(names) +
                               "; the others of their pipeline stage have issued more";
  }
  const int64_t all = most.begin()->second;
  if (names.empty()) return concat("; all ranks have issued ", all, " collectives");
  return "; behind: " + yoke::join(names) + concat("; the others have issued ", all);
}

// " in step 7, after 31 collectives"
std::string HubState::state_of(const Member& member) const {
  if (member.step <= 0) return " before the first step";
  return concat(" in step ", member.step, ", after ", member.collectives, " collectives");
}

}  // namespace yoke
