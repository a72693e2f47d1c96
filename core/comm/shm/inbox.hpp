// The messages that one rank receives from another one.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/comm/shm/announcements.hpp"
#include "core/comm/shm/shm_op.hpp"

namespace yoke {

// Matches messages by their tag, and those of one tag by their order. All functions may be called
// from any thread.
class Inbox {
 public:
  // head: the queue of the sender, in its segment. taken: the counter of this rank. from, to:
  // global ranks, for messages.
  Inbox(const MappedSegment& segment, QueueHead& head, SharedCounter& taken, int from, int to);

  // Receives the next message with the tag of the operation, now or when it arrives.
  void expect(const std::shared_ptr<ShmOp>& op);
  // Takes all messages that have arrived.
  void take();
  // Waits until there is a message that has not been taken, or until `until`.
  void wait(int spins, std::chrono::steady_clock::time_point until);
  // Takes what has arrived and makes all expected messages fail that have not.
  void fail(int32_t code, const std::string& reason);

 private:
  void take_locked();
  void deliver(ShmOp& op, const Signature& sent, const char* data) const;

  const MappedSegment& segment_;
  SharedCounter& taken_;
  const int from_, to_;
  std::mutex mutex_;
  QueueReader messages_;
  // By tag: operations that expect a message, and messages that no operation expects yet.
  std::map<int64_t, std::deque<std::shared_ptr<ShmOp>>> expected_;
  std::map<int64_t, std::deque<std::pair<Signature, std::vector<char>>>> early_;
};

}  // namespace yoke
