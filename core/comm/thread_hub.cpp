// How an operation runs. Every rank puts its Contribution, pointers to its input and output, into
// its slot of the same ThreadOp. When the last slot is filled, the operation is cut into parts, one
// per rank: part p writes what rank p receives or, for an all_reduce, the p-th share of the
// elements on all ranks. Parts write disjoint memory, so any threads may run them at the same time.
//
//   small operations   the last rank to arrive runs all parts; waking helpers would cost more
//   large operations   the last rank sets kRunning and wakes the others; every thread that is
//                      waiting takes the next part until none is left
//
// Data is copied once, from the memory of one rank into that of another: there is no staging buffer
// and no ring. A rank that posts early and then computes delays no other rank, because the last one
// to arrive can run all parts itself.
#include "core/comm/thread_hub.hpp"

#include <algorithm>
#include <utility>

#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

// Largest operation, in bytes, that the last rank to arrive runs alone.
constexpr int64_t kAloneBytes = 32 * 1024;
constexpr int kSpins = 1000;  // tens of microseconds, about the cost of a sleep and its wake-up

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

// ---- ThreadOp: the operations ----

int32_t ThreadOp::num_parts() const {
  switch (slots_[0].signature.op) {
    case Collective::kBarrier:
      return 0;
    case Collective::kSend:
    case Collective::kRecv:
      return 1;
    default:
      return static_cast<int32_t>(slots_.size());
  }
}

void ThreadOp::run(int32_t part) {
  switch (slots_[0].signature.op) {
    case Collective::kAllReduce:
      return run_all_reduce(part);
    case Collective::kSend:
    case Collective::kRecv:
      return copy_bytes(slots_[kReceiver].out, slots_[kSender].in, slots_[kSender].bytes());
    default:
      return receive(slots_, static_cast<size_t>(part));
  }
}

// Reduces the share of this part and writes it to every rank. It may run in place, because each
// element is read from all inputs before it is written.
void ThreadOp::run_all_reduce(int32_t part) {
  const auto size = static_cast<int64_t>(slots_.size());
  const int64_t count = slots_[0].signature.count;
  const int64_t begin = count * part / size, end = count * (part + 1) / size;
  std::vector<void*> targets;
  for (const Contribution& slot : slots_) targets.push_back(slot.out);
  all_reduce_span(slots_, targets, begin, end - begin);
}

// ---- ThreadHub: matching contributions to operations ----

ThreadHub::ThreadHub(std::vector<int32_t> ranks, bool spin)
    : ranks_(std::move(ranks)), spin_(spin), next_(ranks_.size(), 0) {}

void ThreadHub::require_alive() const {
  if (!dead_.empty()) throw Error(YOKE_UNAVAILABLE, dead_);
}

// The k-th post of every rank belongs to operation k. open_ holds the operations that some rank has
// reached and some rank has not, in order: every rank reaches k before k + 1, so the operation that
// becomes complete is always the front.
std::shared_ptr<ThreadOp> ThreadHub::post(int32_t rank, Contribution contribution) {
  std::unique_lock lock(mutex_);
  require_alive();
  const uint64_t index = next_[rank]++ - first_open_;
  if (index == open_.size()) open_.push_back(std::make_shared<ThreadOp>(size()));
  const std::shared_ptr<ThreadOp> op = open_[index];
  op->slots_[rank] = std::move(contribution);
  if (++op->arrived_ < size()) return op;
  open_.pop_front();
  ++first_open_;
  if (std::string reason = difference(op->slots_, ranks_); !reason.empty()) {
    op->error_code_ = YOKE_FAILED_PRECONDITION;
    op->error_ = std::move(reason);
  }
  start(op, std::move(lock));
  return op;
}

// A half waits in sends_ or recvs_ until its other half arrives. At most one of the two queues of a
// key is non-empty.
std::shared_ptr<ThreadOp> ThreadHub::post_message(bool send,
                                                  int32_t from,
                                                  int32_t to,
                                                  Contribution contribution) {
  std::unique_lock lock(mutex_);
  require_alive();
  const MessageKey key{from, to, contribution.signature.detail};
  const size_t slot = send ? ThreadOp::kSender : ThreadOp::kReceiver;
  auto& mine = send ? sends_[key] : recvs_[key];
  auto& others = send ? recvs_[key] : sends_[key];
  if (others.empty()) {
    mine.push_back(std::make_shared<ThreadOp>(2));
    mine.back()->slots_[slot] = std::move(contribution);
    return mine.back();
  }
  const std::shared_ptr<ThreadOp> op = others.front();
  others.pop_front();
  op->slots_[slot] = std::move(contribution);
  const Signature& sent = op->slots_[ThreadOp::kSender].signature;
  const Signature& expected = op->slots_[ThreadOp::kReceiver].signature;
  if (sent.dtype != expected.dtype || sent.count != expected.count) {
    op->error_code_ = YOKE_FAILED_PRECONDITION;
    op->error_ = concat("rank ",
                        ranks_[from],
                        " issues ",
                        describe(sent),
                        ", but rank ",
                        ranks_[to],
                        " issues ",
                        describe(expected));
  }
  start(op, std::move(lock));
  return op;
}

// Runs an operation whose contributions are complete, alone or together with the waiting ranks. The
// lock is released while parts run.
void ThreadHub::start(const std::shared_ptr<ThreadOp>& op, std::unique_lock<std::mutex> lock) {
  const int32_t parts = op->error_.empty() ? op->num_parts() : 0;
  op->parts_left_.store(parts, std::memory_order_relaxed);
  if (parts == 0) return finish(*op, lock);
  const bool alone = op->slots_[0].bytes() <= kAloneBytes;
  if (!alone) {
    op->state_.store(ThreadOp::kRunning, std::memory_order_release);
    lock.unlock();
    changed_.notify_all();
    return work_on(*op);
  }
  lock.unlock();
  for (int32_t part = 0; part < parts; ++part) op->run(part);
  lock.lock();
  finish(*op, lock);
}

// Takes parts until none is left. The thread that completes the last part finishes the operation.
void ThreadHub::work_on(ThreadOp& op) {
  const int32_t parts = op.num_parts();
  for (;;) {
    const int32_t part = op.next_part_.fetch_add(1, std::memory_order_relaxed);
    if (part >= parts) return;
    op.run(part);
    // Acquire and release: the thread that reads 1 here also observes what all others have written.
    if (op.parts_left_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      std::unique_lock lock(mutex_);
      return finish(op, lock);
    }
  }
}

// Marks the operation as done, wakes its ranks and runs its callbacks without the lock, so that a
// callback may use the hub.
void ThreadHub::finish(ThreadOp& op, std::unique_lock<std::mutex>& lock) {
  for (Contribution& slot : op.slots_) {
    if (!op.error_.empty()) slot.staged.clear();
    slot.finish();
  }
  const auto callbacks = std::exchange(op.on_done_, {});
  op.state_.store(ThreadOp::kDone, std::memory_order_release);
  lock.unlock();
  changed_.notify_all();
  for (const auto& f : callbacks) f();
}

bool ThreadHub::wait(ThreadOp& op, std::chrono::milliseconds timeout) {
  using State = ThreadOp::State;
  const auto state = [&] { return op.state_.load(std::memory_order_acquire); };
  if (spin_) {
    for (int i = 0; i < kSpins && state() == State::kGathering; ++i) pause();
  }
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  if (state() == State::kGathering) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_until(lock, deadline, [&] { return state() != State::kGathering; }))
      return false;
  }
  if (state() == State::kRunning) {
    work_on(op);
    for (int i = 0; spin_ && i < kSpins && state() != State::kDone; ++i) pause();
    std::unique_lock lock(mutex_);
    // The remaining parts are running on other threads and cannot block, so no deadline is needed.
    changed_.wait(lock, [&] { return state() == State::kDone; });
  }
  rethrow(op);
  return true;
}

void ThreadHub::rethrow(const ThreadOp& op) {
  if (!op.error_.empty()) throw Error(op.error_code_, op.error_);
}

void ThreadHub::when_done(ThreadOp& op, std::function<void()> f) {
  {
    std::unique_lock lock(mutex_);
    if (!op.completed()) {
      op.on_done_.push_back(std::move(f));
      return;
    }
  }
  f();
}

// Operations that all ranks have reached are left alone: they complete by themselves. The others
// can never complete.
void ThreadHub::kill(const std::string& reason) {
  std::vector<std::function<void()>> callbacks;
  std::unique_lock lock(mutex_);
  if (!dead_.empty()) return;
  dead_ = reason;
  const auto fail = [&](const std::shared_ptr<ThreadOp>& op) {
    op->error_code_ = YOKE_UNAVAILABLE;
    op->error_ = reason;
    for (Contribution& slot : op->slots_) slot = {};
    std::move(op->on_done_.begin(), op->on_done_.end(), std::back_inserter(callbacks));
    op->state_.store(ThreadOp::kDone, std::memory_order_release);
  };
  std::for_each(open_.begin(), open_.end(), fail);
  open_.clear();
  for (auto* messages : {&sends_, &recvs_}) {
    for (auto& [key, ops] : *messages) std::for_each(ops.begin(), ops.end(), fail);
    messages->clear();
  }
  lock.unlock();
  changed_.notify_all();
  for (const auto& f : callbacks) f();
}

}  // namespace yoke
