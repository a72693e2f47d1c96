// A rank's side of its control connection: joining the run, the shared keys and notes, and whether
// the other ranks are still alive.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/control/introduction.hpp"
#include "core/control/listening.hpp"
#include "core/control/message.hpp"
#include "core/control/secret.hpp"

namespace yoke {

class HubConnection;
class JoinWait;

struct MemberOptions {
  int32_t rank = 0;
  int32_t world_size = 1;
  std::string job;  // name of the job that the launcher gives; "" = unknown
  Secret secret;
  std::chrono::milliseconds join_timeout{600'000};
  std::chrono::milliseconds lost_after{2000};  // a silent hub is lost after this time; 0 = never
  const std::atomic<bool>* cancel = nullptr;   // ends the wait for the other ranks
  // Called every five seconds until the hub answers, with a sentence that says why it does not.
  std::function<void(const std::string&)> progress;
};

// A rank of the run, as the hub introduces it to the others.
struct Peer {
  std::string host, process;
  std::string address;  // at which other ranks can reach it
};

// All functions may be called from any thread. A thread of its own reads the connection.
class Member {
 public:
  // Connects to the hub, introduces this rank, and waits until all ranks are present and have been
  // compared. `where` returns the address of the hub and is called for every attempt. Collective.
  // Throws Error: INVALID_ARGUMENT if this rank, or the run, is refused, with the reason;
  // UNAVAILABLE if the hub cannot be reached or ranks are missing after join_timeout, or if the hub
  // is lost; CANCELLED.
  static std::unique_ptr<Member> join(const std::function<ControlAddress()>& where,
                                      const MemberOptions& options,
                                      const Introduction& introduction);
  // Tells the hub that this rank cannot take part, so that the others do not wait for it. Tries for
  // 30 seconds and never throws.
  static void decline(const ControlAddress& at,
                      const MemberOptions& options,
                      const std::string& why) noexcept;
  // Closes the connection. Without leave(), the others take this rank for lost.
  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  const std::vector<Peer>& peers() const { return peers_; }

  // ---- Keys and notes. Throw Error: UNAVAILABLE if a rank is lost, DEADLINE_EXCEEDED. ----

  // Sends a request to the store of the hub and returns its answer (message.hpp, kSet to kCount;
  // `fields` without the number of the request).
  std::string request(MessageType type,
                      std::vector<std::string> fields,
                      std::chrono::milliseconds timeout);
  // Leaves a note for all ranks. Returns when all of them have it.
  void post(const std::string& key, const std::string& value, std::chrono::milliseconds timeout);
  // Returns a note that this rank has got. Takes no more than a lock.
  std::optional<std::string> peek(const std::string& key) const;

  // ---- Presence ----

  // Returns true if a rank is known to be lost or to have failed. Costs one load.
  bool lost() const { return lost_.load(std::memory_order_relaxed); }
  // Returns the first cause; "" unless lost().
  std::string cause() const;
  // Throws Error(UNAVAILABLE) with the first cause if lost().
  void require_alive() const;
  // Reports that this rank ends because of `error`, with the exit code.
  //   kOwn             an error of this rank: waits up to a second until the report is sent, and
  //                    returns "". The other ranks get the error as the first cause.
  //   kLost, kTimeout  this rank lost its peers, or waited for them too long: waits for the first
  //                    cause, for up to lost_after and a second, and returns it, or "" if none
  //                    came.
  enum class Failure { kOwn, kLost, kTimeout };
  std::string report_failure(const std::string& error, Failure kind, int exit_code);
  // Returns the exit code of the rank that failed, if the first cause is an error of that rank.
  std::optional<int> exit_code_of_cause() const;
  // Tells the hub that this rank ends normally; waits up to a second until that is sent. Only the
  // destructor may be called afterwards.
  void leave();

  int64_t step() const { return step_.load(std::memory_order_relaxed); }
  int64_t collectives() const { return collectives_.load(std::memory_order_relaxed); }
  int64_t pp_rank() const { return pp_rank_.load(std::memory_order_relaxed); }
  // What this rank is doing, for the messages about it. `step` counts from 1.
  void set_step(int64_t step) { step_.store(step, std::memory_order_relaxed); }
  // Only ranks with the same pp rank issue the same collectives, and can be compared.
  void set_pp_rank(int64_t pp_rank) { pp_rank_.store(pp_rank, std::memory_order_relaxed); }
  // Adds the time that this rank has computed for the step, without its waits for other ranks.
  void add_computed(double seconds) {
    computed_.fetch_add(static_cast<int64_t>(seconds * 1e6), std::memory_order_relaxed);
  }
  void count_collective() { collectives_.fetch_add(1, std::memory_order_relaxed); }

  // Callbacks with the first cause. They must not throw, nor call set_duties().
  struct Duties {
    // Called by the member's thread if the process is still running one second after a loss, or ten
    // seconds if a report is being written; must end the process. Without it a rank that computes,
    // or waits outside of the communicators, would outlive the run.
    std::function<void(const std::string& cause)> end;
    // Called by a thread of its own, while beats are sent, when the run hangs, or when
    // *report_wanted is set; the flag is cleared first. If the process may have no more threads,
    // the member's thread calls it.
    std::function<void(const std::string& cause)> report;
    std::atomic<bool>* report_wanted = nullptr;
  };
  // Replaces the callbacks; {} removes them. Waits for a callback that is running.
  void set_duties(Duties duties);

 private:
  static Message wait_for_answer(HubConnection& connection,
                                 const MemberOptions& options,
                                 const JoinWait& wait);
  Member(const MemberOptions& options,
         std::unique_ptr<HubConnection> connection,
         std::vector<Peer> peers);

  struct Impl;
  void run();  // the member's thread
  void take(const Message& message);
  bool take_all();
  bool send_some();
  void tell_hub(const Message& message);
  void lose(const std::string& cause, bool hangs, std::optional<int> exit_code = {});
  void do_duties(std::chrono::steady_clock::time_point now);

  std::vector<Peer> peers_;
  std::atomic<bool> lost_{false};
  std::atomic<int64_t> step_{0}, collectives_{0}, pp_rank_{0};
  std::atomic<int64_t> computed_{0};  // microseconds
  std::unique_ptr<Impl> impl_;
};

}  // namespace yoke
