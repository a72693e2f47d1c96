// What the hub of an elastic run's machines knows and decides. It is served by the launcher of
// machine 0 for as long as the run lasts (see hub_logic.hpp); the launchers of all machines join
// it, that of machine 0, too.
//
// A run passes through these phases, the first three once for each attempt:
//
//   gathering   machines become ready, until all of them are, or until enough of them are and no
//               further one has come for a while
//   planning    machine 0 makes the plan for the number of machines that are ready
//   running     the ranks of these machines run
//   over        a machine has ended the run for all of them
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/control/handshakes.hpp"
#include "core/control/hub_logic.hpp"
#include "core/control/introduction.hpp"
#include "core/control/message.hpp"
#include "core/control/secret.hpp"

namespace yoke {

struct MachinesOptions {
  int32_t min = 1, max = 1;       // how many machines an attempt may have
  std::string host{}, process{};  // names of the launcher of machine 0
  std::string job{};              // name of the run
  Secret secret{};
  Introduction facts{};  // facts of machine 0, which those of the others must equal
  bool saves = true;  // a stopped run loses nothing, so it may be stopped for a machine that comes
  std::chrono::milliseconds elastic_wait{10'000};  // wait for a further machine
  std::chrono::milliseconds join_timeout{
      600'000};                                // time from the end of an attempt to the next one
  std::chrono::milliseconds lost_after{2000};  // a silent launcher is not there; 0 = never silent
};

// What the end of the ranks of a machine counts as, if their exit code is 5, 75 or 143.
enum class AttemptEnd : int {
  kOwn,      // what the exit code says
  kLost,     // the loss of a rank
  kPlanned,  // the ranks were stopped because a machine has come; not a failure
};

class MachinesState final : public HubLogic {
 public:
  MachinesState(MachinesOptions options, Time now);

  void connected(int connection,
                 const std::string& peer,
                 const std::string& local,
                 Time now) override;
  void received(int connection, const Message& message, Time now) override;
  void closed(int connection, Time now) override;
  void tick(Time now) override;
  // Ends the run with exit code 2.
  void refuse(const std::string& text) override;

  std::vector<HubAction> take_actions() override;
  size_t frame_limit(int connection) const override { return handshakes_.frame_limit(connection); }
  bool has_too_many_strangers() const override { return handshakes_.has_too_many_strangers(); }
  int oldest_stranger() const override { return handshakes_.oldest_stranger(); }
  // Returns a sentence about the machines that are missing.
  std::string missing() const override;
  // Returns true if the run is over. After refuse(), all machines must have come to learn it.
  bool finished() const override;
  std::chrono::milliseconds lost_after() const override { return options_.lost_after; }

 private:
  enum class Phase { kGathering, kPlanning, kRunning, kOver };
  struct Machine {
    int connection = -1;  // connection of its launcher; -1 = none
    std::string host, process;
    Time heard;
    bool ready = false;  // waits for the next attempt
    Time ready_since;
    bool takes_part = false;     // whether it is part of the running attempt
    bool running = false;        // its ranks have not ended
    std::optional<Time> failed;  // when its ranks have ended with an error, or it was lost
    std::string declined;        // why it takes no part; "" = it may
    int declined_code = 0;
  };

  void join(int connection, const Message& message, Time now);
  bool is_gone(const Machine& m, const std::string& host, Time now) const;
  void admit(int32_t machine, int connection, const Message& message, Time now);
  void decline(const Message& message, Time now);
  void from_machine(int32_t machine, const Message& message, Time now);
  void ready(int32_t machine, Time now);
  void planned();
  void ended(int32_t machine, int64_t code, Time now);
  void leave(int32_t machine, int64_t code, const std::string& why, Time now);
  void consider(Time now);
  void stop(const std::string& why, AttemptEnd counts_as);
  void stop_for_newcomer(int32_t machine);
  void check_failed(Time now);
  void check_silence(Time now);
  void end(int64_t code, const std::string& why);
  void exclude(int32_t machine, int code, const std::string& why, Time now);

  bool present(const Machine& m) const { return m.connection >= 0; }
  std::vector<int32_t> ready_machines() const;
  std::string who(int32_t machine) const;
  std::string attendance() const;
  void send(const Machine& machine, MessageType type, std::vector<std::string> fields);
  void turn_away(int connection, MessageType type, std::vector<std::string> fields);

  const MachinesOptions options_;
  Handshakes handshakes_;
  Phase phase_ = Phase::kGathering;
  Time since_;  // when the gathering began
  Time last_tick_, next_beat_;
  std::vector<Machine> machines_;
  std::map<int, int32_t> connections_;  // -> machine; -1 = has not joined
  std::vector<int32_t> chosen_;         // machines of the planned attempt
  int64_t attempts_ = 0;
  std::string stop_;       // why the attempt is to end; "" = it is not
  bool one_lost_ = false;  // a machine of the attempt was lost, and has come again
  AttemptEnd stop_counts_as_ = AttemptEnd::kOwn;
  int64_t end_code_ = 0;
  std::string end_reason_;
  bool refused_ = false;
  std::set<int32_t> told_;  // machines that know the end
  std::vector<HubAction> actions_;
};

}  // namespace yoke
