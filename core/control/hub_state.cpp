// How the hub lets members in, compares them and keeps their notes; hub_presence.cpp decides when
// one of them is lost.
#include "core/control/hub_state.hpp"

#include <algorithm>

#include "core/control/listening.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke {

HubState::HubState(HubOptions options, Time now)
    : options_(std::move(options)),
      start_(now),
      last_tick_(now),
      next_beat_(now),
      members_(static_cast<size_t>(options_.world_size)),
      handshakes_(options_.secret, options_.world_size, "rank"),
      stragglers_(options_.world_size) {}

// ---- Connections ----

void HubState::connected(int connection,
                         const std::string& peer,
                         const std::string& local,
                         Time now) {
  connections_[connection] = {.local = local};
  handshakes_.connected(connection, peer, now);
}

void HubState::received(int connection, const Message& message, Time now) {
  const auto found = connections_.find(connection);
  if (found == connections_.end()) return;
  Connection& c = found->second;
  if (!handshakes_.proved(connection)) {
    handshakes_.received(connection, message, actions_);
  } else if (c.rank >= 0) {
    from_member(connection, c, message, now);
  } else if (message.type == MessageType::kJoin && message.fields.size() == 7) {
    join(connection, c, message, now);
  } else if (message.type == MessageType::kDecline && message.fields.size() == 6) {
    decline(message);
  }
}

void HubState::closed(int connection, Time) {
  const auto found = connections_.find(connection);
  if (found == connections_.end()) return;
  const int32_t rank = found->second.rank;
  handshakes_.closed(connection);
  connections_.erase(found);
  store_.closed(connection);
  for (int64_t number = 1; number <= notes_; ++number) acknowledged(number, connection);
  if (rank < 0) return;
  Member& m = members_[rank];
  m.connection = -1;
  // Before the start, a rank that has gone may come again: its launcher restarts it.
  if (phase_ != Phase::kRunning || m.left) return;
  fail(concat(who(rank), " ended without notice", state_of(m)) +
       "; its own output, or that of its launcher, says more");
}

// ---- Joining ----

void HubState::join(int connection, Connection& c, const Message& message, Time now) {
  const std::string &job = message.fields[0], &host = message.fields[3],
                    &process = message.fields[4];
  const int64_t rank = number_in(message.fields[1]), world = number_in(message.fields[2]);
  const auto turn_back = [&](const std::string& text) {
    turn_away(connection, MessageType::kRefused, {text});
  };
  const bool same_job = job == options_.job;
  if (!same_job || (phase_ == Phase::kRunning && job.empty())) {
    turn_back(concat("another run uses this address: rank 0 of ", options_.world_size, " is ") +
              concat(options_.host, ", process ", options_.process) +
              (options_.job.empty() ? "" : ", of " + options_.job) +
              "; choose another MASTER_PORT, or wait until that run has ended");
    return;
  }
  if (phase_ == Phase::kRefused) {
    if (world == options_.world_size) told_.insert(static_cast<int32_t>(rank));
    turn_back(reason_);
    return;
  }
  if (phase_ != Phase::kGathering) {
    turn_away(connection, MessageType::kRetry, {"an earlier attempt of this run is still ending"});
    return;
  }
  if (world != options_.world_size || rank < 0 || rank >= world) {
    refuse(concat("rank ", message.fields[1], " (", host, ") expects a world of ", world) +
           concat(" ranks, and rank 0 (", options_.host, ") one of ", options_.world_size) +
           "; give all ranks the same world size");
    turn_back(reason_);
    return;
  }
  Member& m = members_[rank];
  if (present(m)) {
    turn_back(concat("rank ", rank, " is taken by ", m.host, ", process ", m.process) +
              concat(", and was also given to ", host, ", process ", process) +
              "; give every process a rank of its own");
    return;
  }
  m.facts = unpack_introduction(message.fields[6]);  // throws if it is malformed
  m.connection = connection;
  m.host = host;
  m.process = process;
  m.address = message.fields[5];
  m.heard = now;
  c.rank = static_cast<int32_t>(rank);
  handshakes_.joined(connection);
  if (std::all_of(members_.begin(), members_.end(), [&](auto& x) { return present(x); }))
    welcome_all();
}

void HubState::welcome_all() {
  std::vector<Introduced> all;
  for (int32_t r = 0; r < options_.world_size; ++r)
    all.push_back({r, members_[r].host, members_[r].facts});
  if (const auto differences = first_differences(all)) {
    refuse(*differences);
    return;
  }
  phase_ = Phase::kRunning;
  std::vector<std::string> table;
  for (Member& m : members_) {
    table.insert(table.end(), {m.host, m.process, address_of(m)});
    m.facts.clear();
  }
  send_all(MessageType::kWelcome, table);
}

// The address at which other ranks reach a member. A member that has come through the loopback
// address is on the machine of the hub, so the others reach it where they have reached the hub.
std::string HubState::address_of(const Member& member) const {
  if (!is_loopback(member.address)) return member.address;
  for (const Member& other : members_) {
    const std::string& local = connections_.at(other.connection).local;
    if (!is_loopback(local)) return local;
  }
  return "127.0.0.1";
}

// A rank of another run that shares the port by mistake must not end this one.
void HubState::decline(const Message& message) {
  const std::vector<std::string>& f = message.fields;
  if (f[0] != options_.job || number_in(f[2]) != options_.world_size) return;
  told_.insert(static_cast<int32_t>(number_in(f[1])));
  refuse(concat("rank ", f[1], " (", f[3], ", process ", f[4], ") cannot take part: ", f[5]));
}

void HubState::refuse(const std::string& text) {
  if (phase_ != Phase::kGathering) return;
  phase_ = Phase::kRefused;
  reason_ = text;
  told_.insert(0);  // the hub is in the process of rank 0
  for (int32_t r = 0; r < options_.world_size; ++r) {
    if (present(members_[r])) told_.insert(r);
  }
  send_all(MessageType::kRefused, {text});
}

// "ranks 2, 3 of 4 are missing; present: 0 (host-a, process 12), 1 (host-b, process 7)"
std::string HubState::attendance() const {
  std::vector<std::string> here, away;
  for (int32_t r = 0; r < options_.world_size; ++r) {
    const Member& m = members_[r];
    if (present(m)) {
      here.push_back(concat(r, " (", m.host, ", process ", m.process, ")"));
    } else {
      away.push_back(concat(r));
    }
  }
  const bool one = away.size() == 1;
  return concat(one ? "rank " : "ranks ", yoke::join(away), " of ", options_.world_size) +
         (one ? " is missing; present: " : " are missing; present: ") + yoke::join(here) +
         handshakes_.refused_text();
}

std::string HubState::missing() const {
  return phase_ == Phase::kGathering ? attendance() : "";
}

// ---- Notes ----

void HubState::post(int connection, const Message& message) {
  const int64_t number = ++notes_;
  Post& p = posts_[number] = {connection, message.fields[0], {}};
  for (const Member& m : members_) {
    if (present(m) && !m.left) p.unanswered.insert(m.connection);
  }
  send_all(MessageType::kNote, {concat(number), message.fields[1], message.fields[2]});
}

void HubState::acknowledged(int64_t number, int connection) {
  const auto found = posts_.find(number);
  if (found == posts_.end()) return;
  found->second.unanswered.erase(connection);
  if (!found->second.unanswered.empty()) return;
  const Post done = std::move(found->second);
  posts_.erase(found);
  if (connections_.count(done.connection) > 0)
    send(done.connection, MessageType::kPosted, {done.request});
}

// ---- Texts and actions ----

std::vector<HubAction> HubState::take_actions() {
  return std::exchange(actions_, {});
}

void HubState::send(int connection, MessageType type, std::vector<std::string> fields) {
  actions_.push_back({connection, encode({type, std::move(fields)})});
}

void HubState::send_all(MessageType type, const std::vector<std::string>& fields) {
  for (const Member& m : members_) {
    if (present(m)) send(m.connection, type, fields);
  }
}

void HubState::turn_away(int connection, MessageType type, std::vector<std::string> fields) {
  send(connection, type, std::move(fields));
  actions_.push_back({connection, "", true});
}

}  // namespace yoke
