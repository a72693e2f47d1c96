// How a hub lets connections in: the version of the protocol, the proof of the secret, and limits
// for what strangers can cost.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/control/hub_logic.hpp"
#include "core/control/message.hpp"
#include "core/control/secret.hpp"

namespace yoke {

// One thread; no sockets and no clock of its own. A connection is a stranger from connected() to
// joined(); before that, it must prove that it knows the secret.
class Handshakes {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // noun: what joins the hub, for messages, "rank" or "machine". members: how many can join.
  Handshakes(Secret secret, int32_t members, std::string noun);

  void connected(int connection, const std::string& peer, Time now);
  // Handles a message of a connection that has not proved itself, and appends the answers.
  void received(int connection, const Message& message, std::vector<HubAction>& actions);
  // Returns true if the connection has proved itself. Its further messages are the hub's.
  bool proved(int connection) const;
  void joined(int connection);
  void closed(int connection);
  // Closes the connections that have not joined within three seconds.
  void tick(Time now, std::vector<HubAction>& actions) const;

  // As in HubLogic. At most 64 strangers are let in, or two for each member if that is more.
  size_t frame_limit(int connection) const;
  bool has_too_many_strangers() const;
  int oldest_stranger() const;
  // Returns "; refused: 2 connections from 10.0.0.9 without the secret of the run"; "" = none.
  std::string refused_text() const;

 private:
  struct Connection {
    std::string peer;
    Time since;
    std::string proof;  // that the member must send
    bool greeted = false, proved = false, joined = false;
  };
  void greet(int connection, Connection& c, const Message& message, std::vector<HubAction>& out);

  const Secret secret_;
  const int32_t members_;
  const std::string noun_;
  std::map<int, Connection> connections_;
  std::map<std::string, int> rejected_;  // address -> connections that did not prove themselves
};

}  // namespace yoke
