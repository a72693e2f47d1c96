// Meeting point of ranks that are threads of one process: one hub per communicator.
//
// A rank posts what it brings to its next collective and goes on; nobody waits in post(). The rank
// that arrives last finds all contributions, so it can run the operation for everybody; ranks that
// already wait take over parts of it. Progress therefore needs only that every rank issues the
// operations of one communicator in the same order. Operations of different communicators may
// interleave differently on different ranks: no rank ever blocks in one hub while another hub needs
// it to arrive.
#pragma once

#include <ATen/core/Tensor.h>

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

#include "core/comm/signature.hpp"

namespace yoke {

// What one rank brings to one collective. Pointers into memory that `keep` holds or the caller
// keeps.
struct Contribution {
  Signature signature;
  const char* in = nullptr;
  char* out = nullptr;
  std::vector<char*> outs;  // all_gather into separate tensors: instead of out
  std::vector<int64_t>
      in_offsets;  // all_to_all, bytes: what goes to rank r starts at in_offsets[r]
  std::vector<int64_t>
      out_offsets;  // what comes from rank r starts at out_offsets[r]; both end with the total
  std::vector<at::Tensor> keep;
};

// One operation from the first arrival to the last copy. Shared by the ranks' works.
class ThreadOp {
 public:
  ThreadOp(int32_t size, int64_t item_size) : slots_(size), item_size_(item_size) {}
  bool completed() const { return state_.load(std::memory_order_acquire) == kDone; }

 private:
  friend class ThreadHub;
  enum State { kGathering, kRunning, kDone };

  int64_t bytes() const;
  std::string check(const std::vector<int32_t>& ranks) const;  // "" or the fault
  int32_t num_parts() const;
  void run(int32_t part);

  std::vector<Contribution> slots_;
  int64_t item_size_;
  int32_t arrived_ = 0;  // below: guarded by the hub's mutex
  int32_t error_code_ = 0;
  std::string error_;  // final once state_ is kDone
  std::vector<std::function<void()>> on_done_;
  std::atomic<State> state_{kGathering};
  std::atomic<int32_t> next_part_{0};
  std::atomic<int32_t> parts_left_{0};
};

class ThreadHub {
 public:
  // ranks: the global ranks, for messages. spin: busy-wait first; only if every rank has a core.
  ThreadHub(std::vector<int32_t> ranks, bool spin);

  int32_t size() const { return static_cast<int32_t>(ranks_.size()); }
  const std::vector<int32_t>& ranks() const { return ranks_; }

  // Adds the contribution of `rank` to its next operation. Throws Error(UNAVAILABLE) if the hub is
  // dead.
  std::shared_ptr<ThreadOp> post(int32_t rank, Contribution contribution, int64_t item_size);
  // One half of a message; matched by (from, to, tag) in order. `rank` is from or to.
  std::shared_ptr<ThreadOp> post_message(
      bool send, int32_t from, int32_t to, int tag, Contribution contribution, int64_t item_size);

  // True when the operation is done, false after the timeout. Throws the operation's error.
  bool wait(ThreadOp& op, std::chrono::milliseconds timeout);
  // Throws the error of a completed operation.
  static void rethrow(const ThreadOp& op);
  // Calls f once when the operation is done or has failed; at once if it already has.
  void when_done(ThreadOp& op, std::function<void()> f);

  // Fails what cannot complete any more and everything issued later. Any thread.
  void kill(const std::string& reason);

 private:
  using MessageKey = std::tuple<int32_t, int32_t, int>;

  void arrive(const std::shared_ptr<ThreadOp>& op, std::unique_lock<std::mutex> lock);
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
  std::vector<uint64_t> next_;                  // per rank: sequence number of its next operation
  std::map<MessageKey, std::deque<std::shared_ptr<ThreadOp>>> sends_, recvs_;
};

}  // namespace yoke
