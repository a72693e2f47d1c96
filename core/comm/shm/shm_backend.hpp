// The c10d backend for ranks that are processes of one machine.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/comm/local_backend.hpp"
#include "core/comm/shm/announcements.hpp"
#include "core/comm/shm/completer.hpp"
#include "core/comm/shm/inbox.hpp"
#include "core/comm/shm/member_area.hpp"
#include "core/comm/shm/shared_memory.hpp"

namespace yoke {

// One member's description of a new group.
struct ShmGroup {
  std::vector<int32_t> ranks;                // global ranks of the members, ascending
  int rank = 0;                              // index of this rank among them
  std::chrono::milliseconds timeout{60000};  // limit of operations waited for without a limit
};

// One rank's side of a group. An operation copies this rank's data into its segment and never waits
// for a peer. Results are copied and added up by the thread that waits for them, so no operation
// completes on a rank unless that rank waits for it, for a later one, or for a future. Sums are
// computed in rank order, so a result has the same bits on every rank and in every run.
//
// A sent message is complete at once. It is kept in the segment until it is received.
//
// Operations are started by one thread at a time. Works may be waited for by any thread, and
// abort() may be called from any. Operations throw Error: INVALID_ARGUMENT for unsuitable tensors,
// RESOURCE_EXHAUSTED if there is no memory for the data, UNAVAILABLE after abort(). Works fail with
// FAILED_PRECONDITION if the ranks do not issue the same collective, and with UNAVAILABLE if a
// member is lost or has called abort().
class ShmBackend final : public LocalBackend {
 public:
  // Connects the members of a group, through keys of the store that belong to this group alone.
  // Collective over them. Throws the errors of the store, and RESOURCE_EXHAUSTED.
  ShmBackend(std::shared_ptr<SharedMemory> memory, c10d::Store& store, ShmGroup group);
  ~ShmBackend() override;

  const std::string getBackendName() const override { return "shm"; }
  void setTimeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }
  // Makes every operation fail that is not complete, here and on the other members.
  void abort() override;

  // Used by the works. Completes the operation if it needs no further data of the peers. Returns
  // whether it is completed.
  bool try_complete(ShmOp& op);
  // Waits until the operation is completed or has failed; false after the timeout.
  bool wait(ShmOp& op, std::chrono::milliseconds timeout, bool spin = true);
  // Calls f once the operation is completed, on a thread of the group. `work` is kept until then.
  void when_done(const std::shared_ptr<ShmOp>& op, const WorkPtr& work, std::function<void()> f);

 private:
  // A member of the group other than this rank.
  struct Peer {
    int index;  // among the members
    const MappedSegment* segment;
    MemberArea* area;
    std::unique_ptr<QueueReader> collectives;
    std::unique_ptr<Inbox> inbox;
    std::unique_ptr<QueueWriter> outbox;  // messages of this rank to the member
  };

  WorkPtr post(Contribution mine, c10d::OpType type, Tensors results) override;
  WorkPtr post_message(bool send, int peer, Contribution mine, Tensors results) override;
  WorkPtr work_of(c10d::OpType type, Tensors results, std::shared_ptr<ShmOp> op);

  Announcement put_into_segment(const Contribution& mine);
  Peer& peer_at(int index);
  bool all_posted(uint64_t index) const;
  void complete_collectives(uint64_t last);
  void run(ShmOp& op);
  void require_alive();
  std::string who_is_gone() const;
  void fail(int32_t code, const std::string& reason);

  const std::shared_ptr<SharedMemory> memory_;
  const ShmGroup group_;
  const int spins_;
  std::atomic<std::chrono::milliseconds> timeout_;
  MemberArea* area_ = nullptr;
  std::unique_ptr<QueueWriter> collectives_;
  std::vector<Peer> peers_;  // peers in rank order

  std::mutex open_mutex_;
  std::deque<std::shared_ptr<ShmOp>> open_;  // collectives that are not completed, in order
  uint64_t posted_ = 0;                      // number of collectives
  int32_t failed_code_ = 0;                  // code of every later operation
  std::string failed_;                       // reason; "" = alive

  std::mutex run_mutex_;           // guards the completion of collectives; taken before open_mutex_
  std::vector<Contribution> all_;  // scratch space of run()
  Completer completer_;
};

}  // namespace yoke
