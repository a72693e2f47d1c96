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
#include <cstring>
#include <utility>

#include "core/comm/local_reduce.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

// Largest operation, in bytes, that the last rank to arrive runs alone.
constexpr int64_t kAloneBytes = 32 * 1024;
constexpr int kSpins = 1000;  // tens of microseconds, about the cost of a sleep and its wake-up

void copy(char* to, const char* from, int64_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, bytes);
}

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

// ---- ThreadOp: the operations ----

std::string ThreadOp::check(const std::vector<int32_t>& ranks) const {
  std::vector<Signature> signatures;
  for (const Contribution& slot : slots_) signatures.push_back(slot.signature);
  if (auto text = mismatch(signatures, ranks)) return *text;
  if (slots_[0].signature.op != Collective::kAllToAll) return "";
  // The signatures of an all_to_all carry no sizes, because the sizes of the parts may differ.
  for (size_t from = 0; from < slots_.size(); ++from) {
    for (size_t to = 0; to < slots_.size(); ++to) {
      const auto& in = slots_[from].in_offsets;
      const auto& out = slots_[to].out_offsets;
      const int64_t sent = in[to + 1] - in[to], expected = out[from + 1] - out[from];
      if (sent == expected) continue;
      return concat("all_to_all: rank ",
                    ranks[from],
                    " sends ",
                    sent,
                    " bytes to rank ",
                    ranks[to],
                    ", which expects ",
                    expected);
    }
  }
  return "";
}

// Bytes of the larger side. An all_to_all has no count; its input offsets end with the total.
int64_t ThreadOp::bytes() const {
  const Contribution& first = slots_[0];
  return first.in_offsets.empty() ? first.signature.count * item_size_ : first.in_offsets.back();
}

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
    case Collective::kReduceScatter:
      return run_reduction(part);
    case Collective::kAllGather:
      return run_all_gather(part);
    case Collective::kBroadcast:
      return run_broadcast(part);
    case Collective::kAllToAll:
      return run_all_to_all(part);
    case Collective::kSend:
    case Collective::kRecv:
      return run_message();
    case Collective::kBarrier:
      return;
  }
}

// Reduces the elements [begin, begin + count), the share of this part, from the inputs of all
// ranks. An all_reduce writes them to every rank; it may run in place, because each element is read
// from all inputs before it is written. A reduce_scatter writes them to rank `part` only, at the
// start of its output, so its inputs are shifted instead.
void ThreadOp::run_reduction(int32_t part) {
  const auto size = static_cast<int64_t>(slots_.size());
  const Signature& s = slots_[0].signature;
  const bool scatter = s.op == Collective::kReduceScatter;
  const int64_t begin = s.count * part / size;
  const int64_t count = s.count * (part + 1) / size - begin;
  ReduceBuffers buffers{.sources = {},
                        .targets = {},
                        .dtype = static_cast<at::ScalarType>(s.dtype),
                        .op = static_cast<c10d::ReduceOp::RedOpType>(s.detail)};
  for (Contribution& slot : slots_) {
    buffers.sources.push_back(slot.in + (scatter ? begin * item_size_ : 0));
    if (!scatter) buffers.targets.push_back(slot.out);
  }
  if (scatter) buffers.targets.push_back(slots_[part].out);
  reduce(buffers, scatter ? 0 : begin, count);
}

// Copies the inputs of all ranks, in rank order, into the output of rank `part`. A rank that
// gathers in place has its own input there already; copy() then does nothing.
void ThreadOp::run_all_gather(int32_t part) {
  const Contribution& to = slots_[part];
  const auto size = static_cast<int64_t>(slots_.size());
  const int64_t share = bytes() / size;
  for (int64_t from = 0; from < size; ++from) {
    copy(to.outs.empty() ? to.out + from * share : to.outs[from], slots_[from].in, share);
  }
}

// Copies the input of the root into the output of rank `part`.
void ThreadOp::run_broadcast(int32_t part) {
  const int64_t root = slots_[0].signature.detail;
  copy(slots_[part].out, slots_[root].in, bytes());
}

// Copies what each rank sends to rank `part` into the output of rank `part`.
void ThreadOp::run_all_to_all(int32_t part) {
  const Contribution& to = slots_[part];
  for (size_t from = 0; from < slots_.size(); ++from) {
    const auto& in = slots_[from].in_offsets;
    copy(to.out + to.out_offsets[from], slots_[from].in + in[part], in[part + 1] - in[part]);
  }
}

// Copies the sender's data to the receiver.
void ThreadOp::run_message() {
  copy(slots_[kReceiver].out, slots_[kSender].in, bytes());
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
std::shared_ptr<ThreadOp> ThreadHub::post(int32_t rank,
                                          Contribution contribution,
                                          int64_t item_size) {
  std::unique_lock lock(mutex_);
  require_alive();
  const uint64_t index = next_[rank]++ - first_open_;
  if (index == open_.size()) open_.push_back(std::make_shared<ThreadOp>(size(), item_size));
  const std::shared_ptr<ThreadOp> op = open_[index];
  op->slots_[rank] = std::move(contribution);
  if (++op->arrived_ < size()) return op;
  open_.pop_front();
  ++first_open_;
  if (std::string reason = op->check(ranks_); !reason.empty()) {
    op->error_code_ = YOKE_FAILED_PRECONDITION;
    op->error_ = std::move(reason);
  }
  start(op, std::move(lock));
  return op;
}

// A half waits in sends_ or recvs_ until its other half arrives. At most one of the two queues of a
// key is non-empty.
std::shared_ptr<ThreadOp> ThreadHub::post_message(
    bool send, int32_t from, int32_t to, int tag, Contribution contribution, int64_t item_size) {
  std::unique_lock lock(mutex_);
  require_alive();
  const MessageKey key{from, to, tag};
  const size_t slot = send ? ThreadOp::kSender : ThreadOp::kReceiver;
  auto& mine = send ? sends_[key] : recvs_[key];
  auto& others = send ? recvs_[key] : sends_[key];
  if (others.empty()) {
    mine.push_back(std::make_shared<ThreadOp>(2, item_size));
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
  const bool alone = op->bytes() <= kAloneBytes;
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
  for (Contribution& slot : op.slots_) slot.keep.clear();
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
    for (Contribution& slot : op->slots_) slot.keep.clear();
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
