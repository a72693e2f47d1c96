// A hub of machines whose events and clock a test controls, and the launchers that talk to it.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/control/machines_state.hpp"
#include "yoke/text.hpp"

namespace yoke::testing {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Machine i is node<i>, process 10 + i. Its connection has the number 100 + i, unless stated.
class MachinesParty {
 public:
  MachinesParty(int min, int max, MachinesOptions options = {}) {
    options.min = min;
    options.max = max;
    options.host = "node0";
    options.process = "10";
    options.job = "job";
    options.facts = facts;
    world = concat(max);
    hub = std::make_unique<MachinesState>(options, now);
  }

  // Lets time pass, while all launchers that are connected send beats, except for `silent`.
  void wait(milliseconds time, int silent = -1) {
    for (milliseconds t{0}; t < time; t += milliseconds(250)) {
      now += milliseconds(250);
      for (const auto& [machine, connection] : std::map(connections)) {
        if (machine != silent) say(connection, MessageType::kBeat, {"0", "0", "0", "0"});
      }
      hub->tick(now);
      collect();
    }
  }
  void say(int connection, MessageType type, std::vector<std::string> fields) {
    hub->received(connection, {type, std::move(fields)}, now);
    collect();
  }
  void greet(int connection) {
    hub->connected(connection, "10.0.0.9", "10.0.0.1", now);
    say(connection, MessageType::kHello, {kControlProtocol, "nonce"});
    say(connection, MessageType::kProof, {""});
  }
  struct Launcher {
    std::string attempt = "", process = "", job = "job";
    Introduction facts = MachinesParty::facts;
    int connection = -1;
  };
  void join(int machine, Launcher l) {
    if (l.connection < 0) l.connection = 100 + machine;
    if (l.process.empty()) l.process = concat(10 + machine);
    connections[machine] = l.connection;
    greet(l.connection);
    say(l.connection,
        MessageType::kJoin,
        {l.job,
         concat(machine),
         world,
         concat("node", machine),
         l.process,
         l.attempt,
         pack_introduction(l.facts)});
  }
  void join(int machine) { join(machine, {}); }
  void ready(int machine) { say(connections.at(machine), MessageType::kReady, {}); }
  // The launchers join and are ready.
  void come(const std::vector<int>& machines) {
    for (const int m : machines) {
      join(m);
      ready(m);
    }
  }
  void planned() { say(connections.at(0), MessageType::kPlanned, {"0"}); }
  // The ranks of the machines end. Returns what that counts as.
  AttemptEnd end(int machine, int code) {
    say(connections.at(machine), MessageType::kEnded, {concat(code)});
    const auto verdict = last(machine, MessageType::kVerdict);
    return verdict.empty() ? AttemptEnd::kOwn : static_cast<AttemptEnd>(std::stoi(verdict[0]));
  }
  void leave(int machine, int code, const std::string& why) {
    say(connections.at(machine), MessageType::kLeave, {concat(code), why});
  }
  void decline(const std::string& job, int machine, const std::string& why) {
    greet(200 + machine);
    const std::string number = concat(machine);
    say(200 + machine, MessageType::kDecline, {job, number, world, "node" + number, "7", why});
  }
  void close(int machine) {
    hub->closed(connections.at(machine), now);
    connections.erase(machine);
    collect();
  }

  // Returns the fields of the last message of a type to a machine; empty if there was none.
  std::vector<std::string> last(int machine, MessageType type) const {
    const int connection = connections.count(machine) > 0 ? connections.at(machine) : 100 + machine;
    for (auto m = sent.rbegin(); m != sent.rend(); ++m) {
      if (m->first == connection && m->second.type == type) return m->second.fields;
    }
    return {};
  }
  // Returns the number of machines for which machine 0 makes a plan; 0 = it makes none.
  int plan() const {
    const auto fields = last(0, MessageType::kPlan);
    return fields.empty() ? 0 : std::stoi(fields[0]);
  }
  // Returns "ATTEMPT: INDEX of COUNT" of the last start of a machine; "" = none.
  std::string start(int machine) const {
    const auto f = last(machine, MessageType::kStart);
    return f.empty() ? "" : f[0] + ": " + f[1] + " of " + f[2];
  }
  // Returns "CODE: WHY" of the end of the run, as a machine gets it; "" = none.
  std::string over(int machine) const {
    const auto f = last(machine, MessageType::kEnd);
    return f.empty() ? "" : f[0] + ": " + f[1];
  }
  bool wants_closed(int connection) const {
    return std::find(closed.begin(), closed.end(), connection) != closed.end();
  }
  void forget() { sent.clear(); }

  std::string world;  // the largest number of machines
  static inline const Introduction facts{{"seed", "1", ""}};
  HubLogic::Time now{};
  std::unique_ptr<MachinesState> hub;
  std::map<int, int> connections;  // machine -> connection
  std::vector<std::pair<int, Message>> sent;
  std::vector<int> closed;  // connections that the hub wants closed

 private:
  void collect() {
    for (const HubAction& action : hub->take_actions()) {
      if (action.close) closed.push_back(action.connection);
      FrameReader reader(1 << 20);
      reader.append(action.bytes.data(), action.bytes.size());
      while (const auto message = reader.next()) sent.push_back({action.connection, *message});
    }
  }
};

}  // namespace yoke::testing
