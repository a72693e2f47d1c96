// Which machines are there, and what the messages say about them.
#include <utility>

#include "core/control/machines_state.hpp"
#include "yoke/text.hpp"

namespace yoke {

// ---- Presence ----

void MachinesState::tick(Time now) {
  constexpr std::chrono::milliseconds kOwnGap{1000};  // longer without a tick: the hub was stopped
  if (now - last_tick_ > kOwnGap) {
    for (Machine& m : machines_) m.heard = now;
  }
  last_tick_ = now;
  handshakes_.tick(now, actions_);
  if (options_.lost_after.count() > 0) {
    check_silence(now);
    check_failed(now);
  }
  consider(now);
  if (now < next_beat_) return;
  next_beat_ = now + kBeat;
  for (const Machine& m : machines_) send(m, MessageType::kBeat, {});
}

// A launcher that is stopped must not be chosen: its ranks would not start. While its ranks run, it
// may be silent.
void MachinesState::check_silence(Time now) {
  if (phase_ == Phase::kRunning || phase_ == Phase::kOver) return;
  for (size_t i = 1; i < machines_.size(); ++i) {
    const int connection = machines_[i].connection;
    if (connection < 0 || now - machines_[i].heard <= options_.lost_after) continue;
    closed(connection, now);
    actions_.push_back({connection, "", true});
  }
}

// If the ranks of a machine end before all ranks have met, the others would wait for them until
// join_timeout. Ranks that have met notice a loss by themselves, before this limit.
void MachinesState::check_failed(Time now) {
  constexpr std::chrono::milliseconds kNoticed{5000};
  if (phase_ != Phase::kRunning || !stop_.empty()) return;
  for (int32_t i = 0; i < options_.max; ++i) {
    const Machine& m = machines_[i];
    if (!m.takes_part || !m.failed || now - *m.failed <= options_.lost_after + kNoticed) continue;
    stop(who(i) + " is lost, or its ranks have ended; the other ranks end as well",
         AttemptEnd::kLost);
    return;
  }
}

// ---- Texts and actions ----

// "machine 1 (node1, process 812)"
std::string MachinesState::who(int32_t machine) const {
  const Machine& m = machines_[machine];
  return concat("machine ", machine, " (", m.host, ", process ", m.process, ")");
}

// "machine 1 of 2 is missing; present: 0 (node0, process 12)"
std::string MachinesState::attendance() const {
  std::string here, busy, away, declined;
  int num_away = 0;
  for (int32_t i = 0; i < options_.max; ++i) {
    const Machine& m = machines_[i];
    const std::string name = concat(i, " (", m.host, ", process ", m.process, ")");
    const auto add = [](std::string& list, const std::string& item) {
      list += (list.empty() ? "" : ", ") + item;
    };
    if (!m.declined.empty()) {
      declined += concat("; ", who(i), " cannot take part: ", m.declined);
    } else if (m.ready) {
      add(here, name);
    } else if (present(m)) {
      add(busy, name);
    } else {
      add(away, concat(i));
      ++num_away;
    }
  }
  std::string text = "present: " + (here.empty() ? "none" : here);
  if (num_away > 0) {
    text = concat(num_away == 1 ? "machine " : "machines ", away, " of ", options_.max) +
           (num_away == 1 ? " is missing; " : " are missing; ") + text;
  }
  if (!busy.empty()) text += "; their ranks have not ended yet: " + busy;
  return text + declined + handshakes_.refused_text();
}

std::string MachinesState::missing() const {
  if (phase_ != Phase::kGathering || !machines_[0].ready) return "";
  return "waiting for the other machines: " + attendance();
}

std::vector<HubAction> MachinesState::take_actions() {
  return std::exchange(actions_, {});
}

void MachinesState::send(const Machine& machine,
                         MessageType type,
                         std::vector<std::string> fields) {
  if (present(machine)) actions_.push_back({machine.connection, encode({type, std::move(fields)})});
}

void MachinesState::turn_away(int connection, MessageType type, std::vector<std::string> fields) {
  actions_.push_back({connection, encode({type, std::move(fields)})});
  actions_.push_back({connection, "", true});
}

}  // namespace yoke
