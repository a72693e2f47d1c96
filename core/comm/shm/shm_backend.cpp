// A collective takes one copy and one pass. Its start copies the rank's contribution into the
// segment of the rank and announces it. Its wait reads the contributions of all ranks where they
// are, and writes the result to the tensor of the caller. Nobody passes data on, so a rank that
// computes between start and wait delays no other rank.
//
// All ranks announce the collectives of a group in the same order, so if one can be completed, all
// earlier ones can. A wait completes them in order. That makes the bookkeeping small: a rank counts
// the collectives that it has taken, and that number releases the memory of all other ranks.
//
// Rejected: a thread that moves data in the background, because handing over the work takes longer
// than most of the work, and such threads take the cores on which the ranks compute. Rejected, too:
// reading the memory of the other process (process_vm_readv), which containers often forbid.
#include "core/comm/shm/shm_backend.hpp"

#include <algorithm>
#include <utility>

#include "core/base/cores.hpp"
#include "core/base/text.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Number of looks before a thread sleeps, some tens of microseconds, which is about the cost of a
// sleep. With fewer cores than ranks, looking would keep the awaited rank from its core.
constexpr int kSpins = 2000;
// A sleeping thread looks this often whether a member is lost.
constexpr milliseconds kSlice{20};

// all_to_all: the offsets of the parts lie in front of the data.
uint64_t header_bytes(const Contribution& c) {
  return (c.in_offsets.size() + c.out_offsets.size()) * sizeof(int64_t);
}

// The work of an operation of a ShmBackend.
class ShmWork final : public LocalWork {
 public:
  ShmWork(c10d::OpType type,
          std::vector<at::Tensor> results,
          c10::intrusive_ptr<ShmBackend> backend,
          std::shared_ptr<ShmOp> op)
      : LocalWork(backend->getRank(), type, std::move(results)),
        backend_(std::move(backend)),
        op_(std::move(op)) {}

 private:
  bool completed() const override { return backend_->try_complete(*op_); }
  void rethrow() const override {
    if (!op_->error.empty()) throw Error(op_->error_code, op_->error);
  }
  bool wait_for(milliseconds timeout) override { return backend_->wait(*op_, timeout); }
  void when_done(std::function<void()> f) override {
    backend_->when_done(op_, c10::intrusive_ptr<ShmWork>::reclaim_copy(this), std::move(f));
  }

  c10::intrusive_ptr<ShmBackend> backend_;
  std::shared_ptr<ShmOp> op_;
};

}  // namespace

// ---- Making a group ----

// The places of the areas are exchanged through the store. An area is ready when its place is
// known.
ShmBackend::ShmBackend(std::shared_ptr<SharedMemory> memory, c10d::Store& store, ShmGroup group)
    : LocalBackend(group.rank, static_cast<int>(group.ranks.size())),
      memory_(std::move(memory)),
      group_(std::move(group)),
      spins_(memory_->size() <= usable_cores() ? kSpins : 0),
      timeout_(group_.timeout) {
  Segment& own = memory_->own();
  const uint64_t place = own.allocate(MemberArea::bytes(size_));
  std::memset(own.at(place), 0, MemberArea::bytes(size_));
  area_ = MemberArea::at(own, place);
  const auto all = std::make_shared<QueueReaders>();
  collectives_ = std::make_unique<QueueWriter>(own, area_->collectives, all);
  std::vector<std::shared_ptr<QueueReaders>> readers;
  for (int i = 0; i < size_; ++i) {
    if (i == rank_) continue;
    readers.push_back(std::make_shared<QueueReaders>());
    Peer& peer = peers_.emplace_back();
    peer.index = i;
    peer.outbox = std::make_unique<QueueWriter>(own, area_->link(i).messages, readers.back());
  }
  const std::string text = concat(place);
  store.set(concat("area/", rank_), std::vector<uint8_t>(text.begin(), text.end()));
  for (size_t k = 0; k < peers_.size(); ++k) {
    Peer& peer = peers_[k];
    peer.segment = &memory_->of(group_.ranks[peer.index]);
    peer.area =
        MemberArea::at(*peer.segment, std::stoull(store.get_to_str(concat("area/", peer.index))));
    all->add(peer.area->taken);
    readers[k]->add(peer.area->link(rank_).taken);
    peer.collectives = std::make_unique<QueueReader>(*peer.segment, peer.area->collectives);
    peer.inbox = std::make_unique<Inbox>(*peer.segment,
                                         peer.area->link(rank_).messages,
                                         area_->link(peer.index).taken,
                                         group_.ranks[peer.index],
                                         group_.ranks[rank_]);
  }
  all_.resize(static_cast<size_t>(size_));
}

ShmBackend::~ShmBackend() = default;

ShmBackend::Peer& ShmBackend::peer_at(int index) {
  if (index < 0 || index >= size_ || index == rank_) {
    throw Error(YOKE_INVALID_ARGUMENT,
                concat("a message to or from member ",
                       index,
                       "; allowed: 0 to ",
                       size_ - 1,
                       ", except this rank, ",
                       rank_));
  }
  return peers_[static_cast<size_t>(index < rank_ ? index : index - 1)];
}

// ---- Starting operations ----

void ShmBackend::require_alive() {
  const std::lock_guard lock(open_mutex_);
  if (!failed_.empty()) throw Error(failed_code_, failed_);
}

// Copies what the other ranks need of this rank's input. The part that only this rank needs is left
// out, but it keeps its place, so that all offsets are those of the input.
Announcement ShmBackend::put_into_segment(const Contribution& mine) {
  const Signature& s = mine.signature;
  Announcement item{s, 0, 0};
  int64_t bytes = mine.bytes();
  if (s.op == Collective::kAllGather) bytes /= size_;
  if (s.op == Collective::kBroadcast && s.detail != rank_) bytes = 0;
  int64_t own_begin = bytes, own_end = bytes;
  if (s.op == Collective::kReduceScatter) {
    own_begin = bytes / size_ * rank_;
    own_end = own_begin + bytes / size_;
  } else if (s.op == Collective::kAllToAll) {
    own_begin = mine.in_offsets[static_cast<size_t>(rank_)];
    own_end = mine.in_offsets[static_cast<size_t>(rank_) + 1];
  }
  const uint64_t header = header_bytes(mine);
  item.bytes = header + static_cast<uint64_t>(bytes);
  if (item.bytes == 0) return item;
  item.offset = memory_->own().allocate(item.bytes);
  char* to = memory_->own().at(item.offset);
  for (const auto* offsets : {&mine.in_offsets, &mine.out_offsets}) {
    const auto size = static_cast<int64_t>(offsets->size() * sizeof(int64_t));
    copy_bytes(to, reinterpret_cast<const char*>(offsets->data()), size);
    to += size;
  }
  copy_bytes(to, mine.in, own_begin);
  copy_bytes(to + own_end, mine.in + own_end, bytes - own_end);
  return item;
}

ShmBackend::WorkPtr ShmBackend::work_of(c10d::OpType type,
                                        Tensors results,
                                        std::shared_ptr<ShmOp> op) {
  return c10::make_intrusive<ShmWork>(
      type, std::move(results), c10::intrusive_ptr<ShmBackend>::reclaim_copy(this), std::move(op));
}

ShmBackend::WorkPtr ShmBackend::post(Contribution mine, c10d::OpType type, Tensors results) {
  require_alive();
  const auto op = std::make_shared<ShmOp>();
  op->mine = std::move(mine);
  collectives_->post(put_into_segment(op->mine));
  {
    const std::lock_guard lock(open_mutex_);
    op->index = posted_++;
    open_.push_back(op);
  }
  return work_of(type, std::move(results), op);
}

ShmBackend::WorkPtr ShmBackend::post_message(bool send,
                                             int peer,
                                             Contribution mine,
                                             Tensors results) {
  Peer& other = peer_at(peer);
  require_alive();
  const auto op = std::make_shared<ShmOp>();
  if (send) {
    other.outbox->post(put_into_segment(mine));
    op->done = true;
    return work_of(c10d::OpType::SEND, std::move(results), op);
  }
  op->mine = std::move(mine);
  op->peer = peer;
  other.inbox->expect(op);
  return work_of(c10d::OpType::RECV, std::move(results), op);
}

// ---- Completing collectives ----

bool ShmBackend::all_posted(uint64_t index) const {
  return std::all_of(
      peers_.begin(), peers_.end(), [&](const Peer& peer) { return peer.collectives->has(index); });
}

// Completes all collectives up to `last`, which all ranks have posted.
void ShmBackend::complete_collectives(uint64_t last) {
  const std::lock_guard running(run_mutex_);
  for (;;) {
    std::shared_ptr<ShmOp> op;
    {
      const std::lock_guard lock(open_mutex_);
      if (open_.empty() || open_.front()->index > last) return;
      op = open_.front();
      open_.pop_front();
    }
    run(*op);
  }
}

void ShmBackend::run(ShmOp& op) {
  for (const Peer& peer : peers_) {
    const Announcement& item = peer.collectives->front();
    Contribution& theirs = all_[static_cast<size_t>(peer.index)];
    theirs.signature = item.signature;
    theirs.item_size = op.mine.item_size;
    const char* data = peer.segment->at(item.offset);
    if (item.signature.op == Collective::kAllToAll) {
      const auto* offsets = reinterpret_cast<const int64_t*>(data);
      theirs.in_offsets.assign(offsets, offsets + size_ + 1);
      theirs.out_offsets.assign(offsets + size_ + 1, offsets + 2 * (size_ + 1));
      data += header_bytes(theirs);
    }
    theirs.in = data;
  }
  std::swap(all_[static_cast<size_t>(rank_)], op.mine);
  const std::string error = difference(all_, group_.ranks);
  if (error.empty()) receive(all_, static_cast<size_t>(rank_));
  std::swap(all_[static_cast<size_t>(rank_)], op.mine);
  for (const Peer& peer : peers_) peer.collectives->pop();
  advance(area_->taken);
  op.finish(YOKE_FAILED_PRECONDITION, error);
}

// ---- Waiting ----

bool ShmBackend::try_complete(ShmOp& op) {
  if (op.done.load(std::memory_order_acquire)) return true;
  if (op.peer >= 0) {
    peer_at(op.peer).inbox->take();
  } else if (all_posted(op.index)) {
    complete_collectives(op.index);
  }
  return op.done.load(std::memory_order_acquire);
}

bool ShmBackend::wait(ShmOp& op, milliseconds timeout, bool spin) {
  const auto deadline =
      Clock::now() + (timeout == kNoTimeout ? timeout_.load(std::memory_order_relaxed) : timeout);
  int spins = spin ? spins_ : 0;
  while (!try_complete(op)) {
    if (const std::string reason = who_is_gone(); !reason.empty()) {
      fail(YOKE_UNAVAILABLE, reason);
      return true;
    }
    const auto now = Clock::now();
    if (now >= deadline) return false;
    const auto until = std::min(now + kSlice, deadline);
    if (op.peer >= 0) {
      peer_at(op.peer).inbox->wait(spins, until);
    } else {
      for (const Peer& peer : peers_) {
        if (!peer.collectives->await(op.index, spins, until)) break;
      }
    }
    spins = 0;
  }
  return true;
}

void ShmBackend::when_done(const std::shared_ptr<ShmOp>& op,
                           const WorkPtr& work,
                           std::function<void()> f) {
  if (try_complete(*op)) return f();
  const milliseconds timeout = timeout_;
  const auto poll = [this, op, work, timeout, deadline = Clock::now() + timeout](bool doze) {
    if (doze ? wait(*op, milliseconds(1), /*spin=*/false) : try_complete(*op)) return true;
    if (Clock::now() < deadline) return false;
    fail(YOKE_DEADLINE_EXCEEDED, "not finished within " + seconds_text(timeout));
    abort();
    return true;
  };
  completer_.add(poll, std::move(f));
}

// ---- The end of a group ----

// Returns who makes it impossible to complete what is not complete yet; "" = nobody.
std::string ShmBackend::who_is_gone() const {
  const auto gave_up = [&](int member, const MemberArea& area) {
    return area.aborted.load(std::memory_order_acquire) == 0
               ? std::string()
               : concat("rank ", group_.ranks[member], " gave up");
  };
  for (const Peer& peer : peers_) {
    if (auto text = gave_up(peer.index, *peer.area); !text.empty()) return text;
  }
  if (auto text = gave_up(rank_, *area_); !text.empty()) return text;
  return memory_->lost_rank();
}

// Completes what can be completed and makes everything else fail, now and later.
void ShmBackend::fail(int32_t code, const std::string& reason) {
  for (const Peer& peer : peers_) peer.inbox->fail(code, reason);
  const std::lock_guard running(run_mutex_);
  const std::lock_guard lock(open_mutex_);
  if (failed_.empty()) {
    failed_code_ = code;
    failed_ = reason;
  }
  bool complete = true;  // whether all ranks have posted everything up to here
  for (const auto& op : open_) {
    complete = complete && all_posted(op->index);
    if (complete) {
      run(*op);
    } else {
      op->finish(code, reason);
    }
  }
  open_.clear();
}

void ShmBackend::abort() {
  area_->aborted.store(1, std::memory_order_release);
  wake(area_->collectives.posted);
  for (const Peer& peer : peers_) wake(area_->link(peer.index).messages.posted);
  fail(YOKE_UNAVAILABLE, concat("rank ", group_.ranks[rank_], " gave up"));
}

}  // namespace yoke
