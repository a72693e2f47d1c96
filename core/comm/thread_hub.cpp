#include "core/comm/thread_hub.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/comm/local_reduce.hpp"
#include "yoke/error.hpp"

namespace yoke {
namespace {

// Below this many bytes the last rank to arrive does everything itself: waking helpers costs more.
constexpr int64_t kAloneBytes = 32 * 1024;
constexpr int kSpins = 1000;  // tens of microseconds: about what a sleep and its wake-up cost

void copy(char* to, const char* from, int64_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, bytes);
}

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

// ---- ThreadOp: the operations themselves
// ------------------------------------------------------------

std::string ThreadOp::check(const std::vector<int32_t>& ranks) const {
  std::vector<Signature> signatures;
  for (const Contribution& slot : slots_) signatures.push_back(slot.signature);
  if (auto text = mismatch(signatures, ranks)) return *text;
  if (slots_[0].signature.op != Collective::kAllToAll) return "";
  for (size_t from = 0; from < slots_.size(); ++from) {
    for (size_t to = 0; to < slots_.size(); ++to) {
      const auto& sent = slots_[from].in_offsets;
      const auto& expected = slots_[to].out_offsets;
      if (sent[to + 1] - sent[to] == expected[from + 1] - expected[from]) continue;
      return "all_to_all: rank " + std::to_string(ranks[from]) + " sends " +
             std::to_string(sent[to + 1] - sent[to]) + " bytes to rank " +
             std::to_string(ranks[to]) + ", which expects " +
             std::to_string(expected[from + 1] - expected[from]);
    }
  }
  return "";
}

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

// One part of the operation: what rank `part` receives, or, of an all_reduce, its share of the
// indices. Parts touch disjoint memory, so they run on any threads at once.
void ThreadOp::run(int32_t part) {
  const auto size = static_cast<int32_t>(slots_.size());
  const Signature& s = slots_[0].signature;
  Contribution& to = slots_[part];
  switch (s.op) {
    case Collective::kAllReduce:
    case Collective::kReduceScatter: {
      const bool scatter = s.op == Collective::kReduceScatter;
      ReduceBuffers buffers{{},
                            {},
                            static_cast<at::ScalarType>(s.dtype),
                            static_cast<c10d::ReduceOp::RedOpType>(s.detail)};
      const int64_t begin = s.count * part / size;
      const int64_t count = s.count * (part + 1) / size - begin;
      for (Contribution& slot : slots_) {
        buffers.sources.push_back(slot.in + (scatter ? begin * item_size_ : 0));
        if (!scatter) buffers.targets.push_back(slot.out);
      }
      if (scatter) buffers.targets.push_back(to.out);
      reduce(buffers, scatter ? 0 : begin, count);
      break;
    }
    case Collective::kAllGather: {
      const int64_t bytes = this->bytes() / size;
      for (int32_t from = 0; from < size; ++from) {
        copy(to.outs.empty() ? to.out + from * bytes : to.outs[from], slots_[from].in, bytes);
      }
      break;
    }
    case Collective::kBroadcast:
      copy(to.out, slots_[s.detail].in, bytes());
      break;
    case Collective::kAllToAll:
      for (int32_t from = 0; from < size; ++from) {
        const auto& sent = slots_[from].in_offsets;
        copy(to.out + to.out_offsets[from],
             slots_[from].in + sent[part],
             sent[part + 1] - sent[part]);
      }
      break;
    case Collective::kSend:
    case Collective::kRecv:
      copy(slots_[1].out, slots_[0].in, bytes());
      break;
    case Collective::kBarrier:
      break;
  }
}

// ---- ThreadHub: who meets whom
// ------------------------------------------------------------------------

ThreadHub::ThreadHub(std::vector<int32_t> ranks, bool spin)
    : ranks_(std::move(ranks)), spin_(spin), next_(ranks_.size(), 0) {}

void ThreadHub::require_alive() const {
  if (!dead_.empty()) throw Error(YOKE_UNAVAILABLE, dead_);
}

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
  // All ranks reach operation k before any reaches k + 1 as the last: it is the front.
  open_.pop_front();
  ++first_open_;
  if (std::string fault = op->check(ranks_); !fault.empty()) {
    op->error_code_ = YOKE_FAILED_PRECONDITION;
    op->error_ = std::move(fault);
  }
  arrive(op, std::move(lock));
  return op;
}

std::shared_ptr<ThreadOp> ThreadHub::post_message(
    bool send, int32_t from, int32_t to, int tag, Contribution contribution, int64_t item_size) {
  std::unique_lock lock(mutex_);
  require_alive();
  const MessageKey key{from, to, tag};
  auto& mine = send ? sends_[key] : recvs_[key];
  auto& others = send ? recvs_[key] : sends_[key];
  if (others.empty()) {
    mine.push_back(std::make_shared<ThreadOp>(2, item_size));
    mine.back()->slots_[send ? 0 : 1] = std::move(contribution);
    return mine.back();
  }
  const std::shared_ptr<ThreadOp> op = others.front();
  others.pop_front();
  op->slots_[send ? 0 : 1] = std::move(contribution);
  const Signature& sent = op->slots_[0].signature;
  const Signature& expected = op->slots_[1].signature;
  if (sent.dtype != expected.dtype || sent.count != expected.count) {
    op->error_code_ = YOKE_FAILED_PRECONDITION;
    op->error_ = "rank " + std::to_string(ranks_[from]) + " issues " + describe(sent) +
                 ", but rank " + std::to_string(ranks_[to]) + " issues " + describe(expected);
  }
  arrive(op, std::move(lock));
  return op;
}

// All contributions are there: runs the operation, with the help of those who wait if it is large.
void ThreadHub::arrive(const std::shared_ptr<ThreadOp>& op, std::unique_lock<std::mutex> lock) {
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

// Takes parts until none is left; whoever ends the last one finishes the operation.
void ThreadHub::work_on(ThreadOp& op) {
  const int32_t parts = op.num_parts();
  for (;;) {
    const int32_t part = op.next_part_.fetch_add(1, std::memory_order_relaxed);
    if (part >= parts) return;
    op.run(part);
    if (op.parts_left_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      std::unique_lock lock(mutex_);
      return finish(op, lock);
    }
  }
}

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
    // What is left runs on other threads right now and cannot block, so there is no deadline here.
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
  // An operation that all ranks have reached completes; the others never can.
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
