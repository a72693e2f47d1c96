// Collectives between ranks that are threads of one process: one hub per communicator.
//
// A rank posts its contribution to its next collective and continues; post() never waits. The rank
// that arrives last finds all contributions in place, so it can run the operation for all ranks.
// Ranks that are already waiting run parts of it.
//
// So it is enough that all ranks post the operations of one communicator in the same order.
// Operations of different communicators may interleave differently on different ranks: because
// post() never blocks, no order of posts can cause a deadlock.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "core/comm/contribution.hpp"

namespace yoke {

// One operation, from the first contribution to the last copy. The works of all its ranks share it.
//
// It has one slot per rank of the communicator. A message (send and recv) has two slots: kSender
// and kReceiver.
class ThreadOp {
 public:
  explicit ThreadOp(int32_t size) : slots_(size) {}
  // Returns true once the results are in place, or the operation has failed. Any thread.
  bool completed() const { return state_.load(std::memory_order_acquire) == kDone; }

 private:
  friend class ThreadHub;
  // kGathering: contributions are missing. kRunning: all have arrived, and any thread may run
  // parts.
  enum State { kGathering, kRunning, kDone };
  static constexpr size_t kSender = 0, kReceiver = 1;

  int32_t num_parts() const;
  void run(int32_t part);
  void run_all_reduce(int32_t part);

  std::vector<Contribution> slots_;
  // The next four are guarded by the hub's mutex. The error is final once state_ is kDone.
  int32_t arrived_ = 0;
  int32_t error_code_ = 0;
  std::string error_;  // "" = success
  std::vector<std::function<void()>> on_done_;
  std::atomic<State> state_{kGathering};
  std::atomic<int32_t> next_part_{0};   // first part that no thread has taken
  std::atomic<int32_t> parts_left_{0};  // parts that are not finished
};

// One per communicator, shared by its ranks. A rank posts from one thread at a time; waiting,
// when_done() and kill() may come from any thread.
class ThreadHub {
 public:
  // ranks: global ranks of the members, for messages. spin: busy-wait before sleeping, which is
  // faster only if every rank has its own core.
  ThreadHub(std::vector<int32_t> ranks, bool spin);

  int32_t size() const { return static_cast<int32_t>(ranks_.size()); }
  const std::vector<int32_t>& ranks() const { return ranks_; }

  // Adds the contribution of `rank` to its next operation. Throws Error(UNAVAILABLE) if the hub is
  // dead.
  std::shared_ptr<ThreadOp> post(int32_t rank, Contribution contribution);
  // Adds one half of a message, whose tag is the detail of its signature. Halves are matched by
  // (from, to, tag), in the order of their arrival. Throws the same errors as post().
  std::shared_ptr<ThreadOp> post_message(bool send,
                                         int32_t from,
                                         int32_t to,
                                         Contribution contribution);

  // Returns true when the operation is done, false after the timeout. Throws the error of the
  // operation.
  bool wait(ThreadOp& op, std::chrono::milliseconds timeout);
  // Throws the error of a completed operation, if it has one.
  static void rethrow(const ThreadOp& op);
  // Calls f once, when the operation is done or has failed; immediately if that is already the
  // case.
  void when_done(ThreadOp& op, std::function<void()> f);

  // Makes every operation fail that cannot complete any more, and every later post(). Only the
  // first reason is kept.
  void kill(const std::string& reason);

 private:
  using MessageKey = std::tuple<int32_t, int32_t, int64_t>;  // from, to, tag

  void start(const std::shared_ptr<ThreadOp>& op, std::unique_lock<std::mutex> lock);
  void work_on(ThreadOp& op);
  void finish(ThreadOp& op, std::unique_lock<std::mutex>& lock);
  void require_alive() const;

  const std::vector<int32_t> ranks_;
  const bool spin_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string dead_;                            // reason; "" = alive
  std::deque<std::shared_ptr<ThreadOp>> open_;  // operations that some rank has not reached yet
  uint64_t first_open_ = 0;                     // sequence number of open_.front()
  std::vector<uint64_t> next_;                  // sequence number of each rank's next operation
  std::map<MessageKey, std::deque<std::shared_ptr<ThreadOp>>> sends_, recvs_;  // unmatched halves
};

}  // namespace yoke
