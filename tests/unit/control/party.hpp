// A hub whose events and clock a test controls, and the members that talk to it.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/control/hub_state.hpp"
#include "yoke/text.hpp"

namespace yoke::testing {

using std::chrono::milliseconds;

// A hub and the members that talk to it. Connection numbers are 100 + rank unless stated.
class Party {
 public:
  explicit Party(int32_t ranks, HubOptions options = {}) {
    options.world_size = ranks;
    options.host = "node0";
    options.process = "10";
    hub = std::make_unique<HubState>(options, now);
  }

  void wait(milliseconds time) {
    for (milliseconds t{0}; t < time; t += milliseconds(50)) {
      now += milliseconds(50);
      hub->tick(now);
      collect();
    }
  }
  // Lets time pass while these ranks send beats.
  void wait_with_beats(milliseconds time, const std::vector<int>& ranks) {
    for (milliseconds t{0}; t < time; t += milliseconds(50)) {
      for (const int r : ranks) say(100 + r, MessageType::kBeat, {"7", "31", "0", "0"});
      wait(milliseconds(50));
    }
  }
  void say(int connection, MessageType type, std::vector<std::string> fields) {
    hub->received(connection, {type, std::move(fields)}, now);
    collect();
  }
  // Connects and proves itself without a secret.
  void greet(int connection) {
    hub->connected(connection, "10.0.0.9", "10.0.0.1", now);
    say(connection, MessageType::kHello, {kControlProtocol, "nonce"});
    say(connection, MessageType::kProof, {""});
  }
  void join(int rank,
            const std::string& job = "",
            const Introduction& facts = {{"train.lr", "0.1", ""}},
            int connection = -1,
            int world = -1) {
    if (connection < 0) connection = 100 + rank;
    greet(connection);
    say(connection,
        MessageType::kJoin,
        {job,
         concat(rank),
         concat(world < 0 ? size : world),
         concat("node", rank / 2),
         concat(10 + rank),
         concat("10.0.0.", 1 + rank / 2),
         pack_introduction(facts)});
  }
  void close(int connection) {
    hub->closed(connection, now);
    collect();
  }
  void join_all() {
    for (int r = 0; r < size; ++r) join(r);
  }

  // Returns the fields of the last message of a type to a connection; empty if there was none.
  std::vector<std::string> last(int connection, MessageType type) const {
    for (auto m = sent.rbegin(); m != sent.rend(); ++m) {
      if (m->first == connection && m->second.type == type) return m->second.fields;
    }
    return {};
  }
  // Returns the first cause as told to a rank; "" = not told.
  std::string cause(int rank) const {
    const auto fields = last(100 + rank, MessageType::kLost);
    return fields.empty() ? "" : fields[0];
  }
  int count(int connection, MessageType type) const {
    return static_cast<int>(std::count_if(sent.begin(), sent.end(), [&](auto& m) {
      return m.first == connection && m.second.type == type;
    }));
  }

  int size = 0;
  HubState::Time now{};
  std::unique_ptr<HubState> hub;
  std::vector<std::pair<int, Message>> sent;
  std::vector<int> ended;  // connections that the hub wants closed

 private:
  void collect() {
    for (const HubAction& action : hub->take_actions()) {
      if (action.close) ended.push_back(action.connection);
      FrameReader reader(1 << 20);
      reader.append(action.bytes.data(), action.bytes.size());
      while (const auto message = reader.next()) sent.push_back({action.connection, *message});
    }
  }
};

inline Party party(int ranks, HubOptions options = {}) {
  Party p(ranks, std::move(options));
  p.size = ranks;
  return p;
}

}  // namespace yoke::testing
