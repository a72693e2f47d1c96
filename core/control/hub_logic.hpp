// What the thread of a hub needs from the state machine that decides for it. Two kinds of hub share
// the thread: that of the ranks of a run (hub_state.hpp) and that of its machines
// (machines_state.hpp).
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "core/control/message.hpp"

namespace yoke {

// Something that the hub wants to be done with a connection: to send bytes, or to close it once
// everything before has been sent.
struct HubAction {
  int connection;
  std::string bytes;
  bool close = false;
};

// Used by one thread, without sockets, threads or a clock of its own: every event comes with its
// time, and the answers are returned as actions. So every order of events can be tested.
class HubLogic {
 public:
  using Time = std::chrono::steady_clock::time_point;

  virtual ~HubLogic() = default;

  // ---- Events. `connection` is a number that the caller chooses. It must not be reused before
  // closed(). ----

  // peer, local: the addresses of both ends, "" for a Unix socket.
  virtual void connected(int connection,
                         const std::string& peer,
                         const std::string& local,
                         Time now) = 0;
  virtual void received(int connection, const Message& message, Time now) = 0;
  // The connection has been closed by the peer, has failed, or has sent bytes that are no messages.
  virtual void closed(int connection, Time now) = 0;
  // Must be called at least every kBeat.
  virtual void tick(Time now) = 0;
  // Ends the run before it starts: every member that has joined, or will join, gets `text`.
  virtual void refuse(const std::string& text) = 0;

  // ---- Results ----

  // Returns the actions since the last call, in their order.
  virtual std::vector<HubAction> take_actions() = 0;
  // Returns the size of the largest frame, in bytes, that the connection may send. It is small
  // until the connection has joined.
  virtual size_t frame_limit(int connection) const = 0;
  // Returns true if the number of connections that have not joined has reached its limit. A
  // connection that has not joined is closed after three seconds.
  virtual bool has_too_many_strangers() const = 0;
  // Returns the connection that has waited longest to join; -1 = none.
  virtual int oldest_stranger() const = 0;
  // Returns a sentence about the members that are missing; "" = the hub waits for none.
  virtual std::string missing() const = 0;
  // Returns true if no member needs the hub any more.
  virtual bool finished() const = 0;
  // Returns the time after which a silent member is lost; 0 = never.
  virtual std::chrono::milliseconds lost_after() const = 0;

  static constexpr std::chrono::milliseconds kBeat{250};  // between two beats of a member
};

}  // namespace yoke
