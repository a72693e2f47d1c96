// What the hub of the ranks of a run knows and decides (see hub_logic.hpp).
//
// A run passes through these phases:
//
//   gathering   members join; the hub waits until all ranks are present
//   running     all ranks have been welcomed
//   refused     the ranks do not run the same job, or one of them cannot take part
//   failed      a rank is lost or has failed, or ranks were missing for too long; all ranks know
//               why
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/control/handshakes.hpp"
#include "core/control/hub_logic.hpp"
#include "core/control/introduction.hpp"
#include "core/control/message.hpp"
#include "core/control/secret.hpp"
#include "core/control/store_state.hpp"
#include "core/control/straggler_watch.hpp"

namespace yoke {

// Key of the note by which rank 0 learns who is slow: "RANK FACTOR SINCE_STEP".
inline constexpr const char* kStragglerNote = "straggler";

struct HubOptions {
  int32_t world_size = 1;
  std::string host, process;  // names of the hub's own host and process
  std::string job;            // name of the job that the launcher gives; "" = unknown
  Secret secret;
  std::chrono::milliseconds join_timeout{
      600'000};                                // time from the start until all ranks are present
  std::chrono::milliseconds lost_after{2000};  // a silent rank is lost after this time; 0 = never
};

class HubState final : public HubLogic {
 public:
  HubState(HubOptions options, Time now);

  void connected(int connection,
                 const std::string& peer,
                 const std::string& local,
                 Time now) override;
  void received(int connection, const Message& message, Time now) override;
  void closed(int connection, Time now) override;
  void tick(Time now) override;
  void refuse(const std::string& text) override;

  std::vector<HubAction> take_actions() override;
  size_t frame_limit(int connection) const override { return handshakes_.frame_limit(connection); }
  bool has_too_many_strangers() const override { return handshakes_.has_too_many_strangers(); }
  // Returns a sentence about the ranks that are missing.
  std::string missing() const override;
  int oldest_stranger() const override { return handshakes_.oldest_stranger(); }
  // Returns true if all ranks have left, or know why the run has ended.
  bool finished() const override;
  std::chrono::milliseconds lost_after() const override { return options_.lost_after; }

 private:
  enum class Phase { kGathering, kRunning, kRefused, kFailed };
  struct Connection {
    std::string local;
    int32_t rank = -1;  // the member that has joined through it; -1 = none
  };
  struct Member {
    int connection = -1;  // -1 = not present
    std::string host, process, address;
    Introduction facts;
    Time heard;
    int64_t step = 0;
    int64_t collectives = 0;
    int64_t pp_rank = 0;
    bool left = false;  // has ended in order
  };
  struct Post {
    int connection;  // connection of the member that waits
    std::string request;
    std::set<int> unanswered;  // connections that have not acknowledged it
  };

  void join(int connection, Connection& c, const Message& message, Time now);
  void decline(const Message& message);
  void from_member(int connection, Connection& c, const Message& message, Time now);
  void beat(Member& m, int32_t rank, const Message& message);
  void post(int connection, const Message& message);
  void acknowledged(int64_t number, int connection);
  void welcome_all();
  void fail(const std::string& cause, bool hangs = false, const std::string& code = "");
  void check_silence(Time now);
  bool awaits_silence(Time now) const;

  std::string who(int32_t rank) const;
  std::string attendance() const;
  std::string address_of(const Member& member) const;
  std::string state_of(const Member& member) const;
  std::string behind() const;
  bool present(const Member& m) const { return m.connection >= 0; }
  void send(int connection, MessageType type, std::vector<std::string> fields);
  void send_all(MessageType type, const std::vector<std::string>& fields);
  void turn_away(int connection, MessageType type, std::vector<std::string> fields);

  const HubOptions options_;
  const Time start_;
  Time last_tick_, next_beat_;
  Phase phase_ = Phase::kGathering;
  std::string reason_;      // reason of the refusal or the failure
  std::set<int32_t> told_;  // ranks that know the refusal
  std::vector<Member> members_;
  std::map<int, Connection> connections_;
  Handshakes handshakes_;
  std::string suspicion_;         // a member lost its peers, and no cause is known yet
  bool suspicion_hangs_ = false;  // it waited for them too long
  Time suspicion_since_;
  std::map<int64_t, Post> posts_;
  int64_t notes_ = 0;
  StoreState store_;
  StragglerWatch stragglers_;
  std::vector<HubAction> actions_;
};

}  // namespace yoke
