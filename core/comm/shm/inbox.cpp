// Messages are taken in the order in which they were sent. One that nobody expects yet is copied
// out of the segment of the sender, which can then release all memory in order.
#include "core/comm/shm/inbox.hpp"

#include "yoke/error.hpp"

namespace yoke {

Inbox::Inbox(const MappedSegment& segment, QueueHead& head, SharedCounter& taken, int from, int to)
    : segment_(segment), taken_(taken), from_(from), to_(to), messages_(segment, head) {}

void Inbox::expect(const std::shared_ptr<ShmOp>& op) {
  const std::lock_guard lock(mutex_);
  auto& early = early_[op->mine.signature.detail];
  if (early.empty()) {
    expected_[op->mine.signature.detail].push_back(op);
  } else {
    deliver(*op, early.front().first, early.front().second.data());
    early.pop_front();
  }
}

void Inbox::take() {
  const std::lock_guard lock(mutex_);
  take_locked();
}

void Inbox::take_locked() {
  while (messages_.has_item()) {
    const Announcement& item = messages_.front();
    const char* data = segment_.at(item.offset);
    auto& expected = expected_[item.signature.detail];
    if (expected.empty()) {
      early_[item.signature.detail].emplace_back(item.signature,
                                                 std::vector<char>(data, data + item.bytes));
    } else {
      deliver(*expected.front(), item.signature, data);
      expected.pop_front();
    }
    messages_.pop();
    advance(taken_);
  }
}

void Inbox::deliver(ShmOp& op, const Signature& sent, const char* data) const {
  const auto text = mismatch({sent, op.mine.signature}, {from_, to_});
  if (!text) copy_bytes(op.mine.out, data, op.mine.bytes());
  op.finish(YOKE_FAILED_PRECONDITION, text.value_or(""));
}

void Inbox::wait(int spins, std::chrono::steady_clock::time_point until) {
  uint64_t taken = 0;
  {
    const std::lock_guard lock(mutex_);
    taken = messages_.taken();
  }
  messages_.await(taken, spins, until);
}

void Inbox::fail(int32_t code, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  take_locked();
  for (auto& [tag, ops] : expected_) {
    for (const auto& op : ops) op->finish(code, reason);
  }
  expected_.clear();
}

}  // namespace yoke
