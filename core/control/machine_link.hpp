// A launcher's side of its connection to the hub of the machines (machines_state.hpp).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/control/introduction.hpp"
#include "core/control/listening.hpp"
#include "core/control/machines_state.hpp"
#include "core/control/secret.hpp"

namespace yoke {

struct MachineLinkOptions {
  ControlAddress at;     // address of the hub
  int32_t machine = 0;   // number of this machine
  int32_t machines = 1;  // the largest number of machines
  std::string job;       // name of the run
  Secret secret;
  Introduction facts;                               // values that must be the same on all machines
  std::chrono::milliseconds join_timeout{600'000};  // time to reach the hub
  std::chrono::milliseconds lost_after{2000};  // silence after which the hub is lost; 0 = never
  // Prints a sentence for the user; a thread of the link calls it.
  std::function<void(const std::string&)> print;
};

// What a launcher is to do while it waits for the next attempt.
struct MachineOrder {
  enum class Kind {
    kPlan,   // machine 0: make a plan for `machines` machines, then call planned()
    kStart,  // start the ranks of this machine
    kEnd,    // the run has ended, or this machine is refused; end with `exit_code`
  };
  Kind kind = Kind::kEnd;
  std::string attempt{};  // name of the attempt
  int32_t index = 0;      // position of this machine among those that take part
  int32_t machines = 0;   // number of machines that take part
  int exit_code = 0;
  std::string text{};  // kStart: the machines that take part. kEnd: why
};

// A thread connects to the hub, and again whenever the connection is lost, sends beats, and keeps
// what the hub orders. One thread may call the functions. Block the signals of this process before;
// the thread must not get them.
class MachineLink {
 public:
  explicit MachineLink(MachineLinkOptions options);
  // Closes the connection. Call leave() before: a launcher that only vanishes may come again.
  ~MachineLink();
  MachineLink(const MachineLink&) = delete;
  MachineLink& operator=(const MachineLink&) = delete;

  // Says that this machine waits for the next attempt. If the hub cannot be reached within
  // join_timeout, an order to end follows, with exit code 5.
  void ready();
  // Returns a descriptor that is readable while an order waits. kEnd is the last order.
  int order_fd() const;
  std::optional<MachineOrder> take_order();
  // Says that machine 0 has made the plan. Another kPlan may follow, if machines have come or gone.
  void planned(int32_t machines);

  // Returns a descriptor that is readable if the ranks of the attempt that was started last are to
  // save and end.
  int stop_fd() const;
  std::string stop_reason() const;

  // Reports the exit code of the ranks, and waits until the hub says what it counts as, at most
  // three seconds longer than lost_after, and at least five seconds. Returns kOwn if the hub does
  // not answer.
  AttemptEnd ended(int exit_code);
  // Returns the exit code of the last order, if it has been given: the run is over.
  std::optional<int> end_code() const;
  // Says that this machine takes no further part. Waits at most a second until that is sent.
  void leave(int exit_code, const std::string& why);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace yoke
