// The launchers do not decide by themselves whether an attempt was stopped on purpose: the same
// exit code 75 may come from a user's signal on some other machine. Each launcher reports the exit
// code of its ranks, and the hub, which has ordered the stop or has not, answers what that means.
//
// Attempts are never mixed up: each has a name, which becomes a part of the name of the job, so a
// rank of an earlier attempt that was cut off and comes back is refused by the ranks of a later
// one.
#include "core/control/machines_state.hpp"

#include <algorithm>
#include <utility>

#include "core/base/exit_code.hpp"
#include "core/base/text.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

bool is_user_stop(int64_t code) {
  return code == kExitSaved || code == kExitSigint || code == kExitSigterm;
}

}  // namespace

MachinesState::MachinesState(MachinesOptions options, Time now)
    : options_(std::move(options)),
      handshakes_(options_.secret, options_.max, "machine"),
      since_(now),
      last_tick_(now),
      next_beat_(now),
      machines_(static_cast<size_t>(options_.max)) {
  machines_[0].host = options_.host;
  machines_[0].process = options_.process;
}

// ---- Connections ----

void MachinesState::connected(int connection,
                              const std::string& peer,
                              const std::string&,
                              Time now) {
  connections_[connection] = -1;
  handshakes_.connected(connection, peer, now);
}

void MachinesState::received(int connection, const Message& message, Time now) {
  const auto found = connections_.find(connection);
  if (found == connections_.end()) return;
  if (!handshakes_.proved(connection)) {
    handshakes_.received(connection, message, actions_);
  } else if (found->second >= 0) {
    from_machine(found->second, message, now);
  } else if (message.type == MessageType::kJoin && message.fields.size() == 7) {
    join(connection, message, now);
  } else if (message.type == MessageType::kDecline && message.fields.size() == 6) {
    decline(message, now);
  }
}

void MachinesState::closed(int connection, Time now) {
  const auto found = connections_.find(connection);
  if (found == connections_.end()) return;
  const int32_t machine = found->second;
  connections_.erase(found);
  handshakes_.closed(connection);
  if (machine < 0) return;
  Machine& m = machines_[machine];
  m.connection = -1;
  m.ready = false;
  if (m.running && !m.failed) m.failed = now;
  if (phase_ == Phase::kPlanning && machine == 0) phase_ = Phase::kGathering;
  consider(now);
}

// ---- Joining ----

void MachinesState::join(int connection, const Message& message, Time now) {
  const std::vector<std::string>& f = message.fields;
  const auto refuse = [&](const std::string& text) {
    turn_away(connection, MessageType::kRefused, {text});
  };
  if (f[0] != options_.job) {
    refuse(concat("the launchers of another run meet at this address: ", who(0), ", of ") +
           options_.job + "; choose another port for --master, or wait until that run has ended");
    return;
  }
  const int64_t machine = number_in(f[1]);
  const auto differences =
      first_differences({{0, options_.host, options_.facts},
                         {static_cast<int32_t>(machine), f[3], unpack_introduction(f[6])}},
                        "machine");
  if (machine >= 0 && machine < options_.max && phase_ == Phase::kOver) {
    told_.insert(static_cast<int32_t>(machine));
    turn_away(connection, MessageType::kEnd, {concat(end_code_), end_reason_});
    return;
  }
  if (machine < 0 || machine >= options_.max || differences) {
    refuse(differences ? *differences
                       : concat("--node-rank ", f[1], " (", f[3], "): allowed: 0 to ") +
                             concat(options_.max - 1));
    if (machine > 0 && machine < options_.max && !present(machines_[machine])) {
      machines_[machine].host = f[3];
      machines_[machine].process = f[4];
      exclude(static_cast<int32_t>(machine), kExitUsage, *differences, now);
    }
    return;
  }
  const Machine& m = machines_[machine];
  const bool same_process = m.host == f[3] && m.process == f[4];
  if (!same_process && (machine == 0 || (present(m) && !is_gone(m, f[3], now)))) {
    // The launcher of a machine that has crashed may come again before its loss is noticed.
    turn_away(connection,
              machine == 0 ? MessageType::kRefused : MessageType::kRetry,
              {concat("--node-rank ", machine, " is taken by ", m.host, ", process ", m.process) +
               "; give every machine a number of its own"});
    return;
  }
  admit(static_cast<int32_t>(machine), connection, message, now);
}

// Returns whether a launcher that comes from `host` shows that the one before it is gone. Without
// lost_after the connection of a machine that has lost power stays open for minutes.
bool MachinesState::is_gone(const Machine& m, const std::string& host, Time now) const {
  constexpr std::chrono::milliseconds kSilence{2000};
  return options_.lost_after.count() == 0 && m.host == host && now - m.heard > kSilence;
}

// Lets a launcher in that may join. A launcher whose connection was broken comes again while its
// ranks run.
void MachinesState::admit(int32_t machine, int connection, const Message& message, Time now) {
  Machine& m = machines_[machine];
  const bool same_process = m.host == message.fields[3] && m.process == message.fields[4];
  if (present(m)) {
    connections_[m.connection] = -1;
    if (!same_process) {
      send(m,
           MessageType::kRefused,
           {concat("--node-rank ", machine, " was silent, and is now taken by ") +
            concat(message.fields[3], ", process ", message.fields[4])});
    }
    actions_.push_back({m.connection, "", true});
  }
  m.connection = connection;
  connections_[connection] = machine;
  handshakes_.joined(connection);
  m.heard = now;
  const std::string& attempt = message.fields[5];
  const bool continues = same_process && phase_ == Phase::kRunning && m.takes_part && m.running &&
                         attempt == concat(attempts_);
  if (m.takes_part && !continues) one_lost_ = one_lost_ || m.running || m.failed;
  m.host = message.fields[3];
  m.process = message.fields[4];
  m.ready = false;
  m.running = !attempt.empty();
  m.failed.reset();
  m.declined.clear();
  if (continues && !stop_.empty()) send(m, MessageType::kStop, {stop_});
  if (!continues) m.takes_part = false;
}

void MachinesState::decline(const Message& message, Time now) {
  const std::vector<std::string>& f = message.fields;
  const int64_t machine = number_in(f[1]);
  if (f[0] != options_.job || number_in(f[2]) != options_.max || machine <= 0 ||
      machine >= options_.max || present(machines_[machine]) || phase_ == Phase::kOver)
    return;
  machines_[machine].host = f[3];
  machines_[machine].process = f[4];
  exclude(static_cast<int32_t>(machine), kExitUsage, f[5], now);
}

// ---- What the machines report ----

void MachinesState::from_machine(int32_t machine, const Message& message, Time now) {
  machines_[machine].heard = now;
  const std::vector<std::string>& fields = message.fields;
  if (phase_ == Phase::kOver) return;
  if (message.type == MessageType::kReady) {
    ready(machine, now);
  } else if (message.type == MessageType::kPlanned && machine == 0) {
    planned();
    consider(now);
  } else if (message.type == MessageType::kEnded && fields.size() == 1) {
    ended(machine, number_in(fields[0]), now);
  } else if (message.type == MessageType::kLeave && fields.size() == 2) {
    leave(machine, number_in(fields[0]), fields[1], now);
  }
}

void MachinesState::ready(int32_t machine, Time now) {
  Machine& m = machines_[machine];
  m.ready = true;
  m.running = false;
  m.ready_since = now;
  if (machine == 0 && phase_ == Phase::kRunning) {
    phase_ = Phase::kGathering;
    since_ = now;
  }
  if (phase_ == Phase::kRunning && !m.takes_part) stop_for_newcomer(machine);
  consider(now);
}

void MachinesState::stop_for_newcomer(int32_t machine) {
  if (!stop_.empty()) return;
  if (!options_.saves) {
    send(machines_[machine],
         MessageType::kNews,
         {"the run continues without this machine until its next restart: it saves nothing that "
          "another attempt could start from (checkpoint.every = 0)"});
    return;
  }
  const bool one_failed =
      one_lost_ || std::any_of(machines_.begin(), machines_.end(), [](const Machine& m) {
        return m.takes_part && m.failed;
      });
  stop(who(machine) + " has come; the ranks save, and all machines start them again",
       one_failed ? AttemptEnd::kLost : AttemptEnd::kPlanned);
}

void MachinesState::ended(int32_t machine, int64_t code, Time now) {
  Machine& m = machines_[machine];
  const bool can_be_stopped = code == kExitRankLost || code == kExitSaved || code == kExitSigterm;
  const AttemptEnd counts_as =
      m.takes_part && !stop_.empty() && can_be_stopped ? stop_counts_as_ : AttemptEnd::kOwn;
  m.running = false;
  if (code != kExitOk && !m.failed) m.failed = now;
  send(m, MessageType::kVerdict, {concat(static_cast<int>(counts_as))});
}

void MachinesState::leave(int32_t machine, int64_t code, const std::string& why, Time now) {
  Machine& m = machines_[machine];
  m.ready = m.running = false;
  // A machine that has only waited for its turn does not end what the others do.
  if (is_user_stop(code) && phase_ == Phase::kRunning && !m.takes_part) return;
  if (machine == 0 || is_user_stop(code)) {
    told_.insert(machine);
    end(code, who(machine) + (code == kExitOk ? " has ended: the run is complete" : ": " + why));
  } else if (code != kExitOk) {
    if (!m.failed) m.failed = now;
    exclude(machine, static_cast<int>(code), why, now);
  }
}

// Stops waiting for a machine. A process that is started there later may still join.
void MachinesState::exclude(int32_t machine, int code, const std::string& why, Time now) {
  Machine& m = machines_[machine];
  m.declined = why.empty() ? "see its output" : why;
  m.declined_code = code;
  consider(now);
}

// ---- Decisions ----

std::vector<int32_t> MachinesState::ready_machines() const {
  std::vector<int32_t> ready;
  for (int32_t i = 0; i < options_.max; ++i) {
    if (machines_[i].ready) ready.push_back(i);
  }
  return ready;
}

// Decides whether the next attempt can be planned, or cannot take place at all.
void MachinesState::consider(Time now) {
  if (phase_ != Phase::kGathering || !machines_[0].ready) return;
  int32_t possible = 0;
  bool busy = false;  // the ranks of a machine that is there have not ended yet
  Time last = since_;
  const Machine* declined = nullptr;
  for (const Machine& m : machines_) {
    if (m.declined.empty()) ++possible;
    if (!m.declined.empty() && declined == nullptr) declined = &m;
    busy = busy || (present(m) && !m.ready && m.declined.empty());
    if (m.ready) last = std::max(last, m.ready_since);
  }
  const std::vector<int32_t> ready = ready_machines();
  const auto count = static_cast<int32_t>(ready.size());
  const bool late = now - since_ > options_.join_timeout;
  if (possible < options_.min) {
    end(declined->declined_code,
        who(static_cast<int32_t>(declined - machines_.data())) +
            " cannot take part: " + declined->declined);
  } else if (count == possible ||
             (count >= options_.min && (!busy || late) && now - last >= options_.elastic_wait)) {
    phase_ = Phase::kPlanning;
    chosen_ = ready;
    send(machines_[0], MessageType::kPlan, {concat(count)});
  } else if (count < options_.min && late) {
    end(kExitRankLost,
        attendance() + concat("; --nnodes ", options_.min, ":", options_.max, " needs at least ") +
            concat(options_.min, "; gave up after ", seconds_text(options_.join_timeout)) +
            " (launch.join_timeout)");
  }
}

// A machine may have come or gone while machine 0 has made the plan; then it is made again.
void MachinesState::planned() {
  if (phase_ != Phase::kPlanning) return;
  if (ready_machines() != chosen_) {
    phase_ = Phase::kGathering;
    return;
  }
  phase_ = Phase::kRunning;
  ++attempts_;
  stop_.clear();
  one_lost_ = false;
  std::string names;
  for (const int32_t i : chosen_)
    names += concat(names.empty() ? "" : ", ", i, " (", machines_[i].host, ")");
  for (Machine& m : machines_) m.takes_part = false;
  int32_t index = 0;
  for (const int32_t i : chosen_) {
    Machine& m = machines_[i];
    m.takes_part = m.running = true;
    m.ready = false;
    m.failed.reset();
    send(m,
         MessageType::kStart,
         {concat(attempts_), concat(index++), concat(chosen_.size()), names});
  }
}

void MachinesState::stop(const std::string& why, AttemptEnd counts_as) {
  stop_ = why;
  stop_counts_as_ = counts_as;
  for (const Machine& m : machines_) {
    if (m.takes_part && m.running) send(m, MessageType::kStop, {why});
  }
}

// Ranks that have met end by themselves; those that still wait for others would not.
void MachinesState::end(int64_t code, const std::string& why) {
  if (phase_ == Phase::kOver) return;
  if (phase_ == Phase::kRunning && code != kExitOk && stop_.empty()) stop(why, AttemptEnd::kOwn);
  phase_ = Phase::kOver;
  end_code_ = code;
  end_reason_ = why;
  for (int32_t i = 0; i < options_.max; ++i) {
    if (!present(machines_[i]) || !told_.insert(i).second) continue;
    send(machines_[i], MessageType::kEnd, {concat(code), why});
  }
}

void MachinesState::refuse(const std::string& text) {
  refused_ = true;
  told_.insert(0);  // the hub is in the process of machine 0
  end(kExitUsage, text);
}

bool MachinesState::finished() const {
  return phase_ == Phase::kOver &&
         (!refused_ || static_cast<int32_t>(told_.size()) >= options_.max);
}

}  // namespace yoke
