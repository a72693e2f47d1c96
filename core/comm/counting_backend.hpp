// A decorator around the transport of every communicator: counts and checks its operations, and
// translates its errors.
#pragma once

#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/comm/recorded_operations.hpp"
#include "core/comm/signature.hpp"
#include "core/comm/work_wait.hpp"

namespace yoke {

// Counters of one set of axes, by operation and at::ScalarType. Any thread: the threads of a rank
// write them, the metrics read them.
class Traffic {
 public:
  using Counts = std::map<std::pair<Collective, int32_t>, CommCount>;

  void add_call(const Signature& signature, int64_t bytes);
  void add_wait(const Signature& signature, std::chrono::nanoseconds time);
  Counts counts() const;

 private:
  mutable std::mutex mutex_;
  Counts counts_;
};

// Wraps any c10d backend and is one itself, so operations that a plugin issues directly on the
// ProcessGroup are counted too.
//
//   counts   Calls, bytes of the larger side, and the time spent in wait() of the works. Neither
//            time on a device nor a wait on the future of a work is counted.
//   checks   Records each collective in the history, and each message in that of its link. With a
//            check backend, compares the signature of a collective with those of the other ranks
//            before it is issued. The sender of a message sends its signature ahead. The receiver
//            compares it in wait(), and only then starts to receive.
//   records  While a device records the work of this rank, notes the operations, so that they can
//            be counted and checked in each replay.
//   errors   Everything that the call, the work or its future throws is an Error with the codes
//            that CommWork::wait() lists.
//
// After CANCELLED and DEADLINE_EXCEEDED the transport is aborted, so that no rank can use the
// communicator any more. One thread at a time. Any thread may wait for a work, except that with a
// check backend only the thread that has issued a message may wait for it.
class CountingBackend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  struct Setup {
    c10::intrusive_ptr<c10d::Backend> inner;  // transport of the operations
    c10::intrusive_ptr<c10d::Backend> check;  // transport of the signatures; null = no check
    std::string axes;                         // "dp_shard"
    std::string purpose;                      // "unshard"
    std::vector<int32_t> ranks;               // global ranks of the members, ascending
    CommOptions options;
    std::shared_ptr<Traffic> traffic;  // counters; shared with other communicators of the axes
    std::shared_ptr<History> history;  // collectives issued; read by the collective log
    Recording* recording = nullptr;    // that of the rank; outlives the backend
    // Called at the first message of each link, with its history.
    std::function<void(const Link&, std::shared_ptr<const History>)> on_link;
    bool on_device = false;  // wait() of a work queues on the current stream instead of blocking
  };
  CountingBackend(Setup setup, int rank);

  // Used by the works. link: that of a message.
  PendingOperation pending(const Signature& signature, const Link& link) const;
  void add_wait(const Signature& signature, std::chrono::nanoseconds time) {
    setup_.traffic->add_wait(signature, time);
  }
  const CommOptions& options() const { return setup_.options; }
  bool on_device() const { return setup_.on_device; }

  c10d::Backend& transport() const { return *setup_.inner; }

  // Throws Error(UNAVAILABLE) or DEADLINE_EXCEEDED if a collective on a device has failed. Does
  // nothing on the CPU.
  void require_alive() const;
  void abort() override;
  void shutdown() override { setup_.inner->shutdown(); }

  const std::string getBackendName() const override { return setup_.inner->getBackendName(); }
  void setTimeout(std::chrono::milliseconds timeout) override;
  c10::intrusive_ptr<Options> getBackendOptions() override {
    return setup_.inner->getBackendOptions();
  }

  // See c10d::Backend. Split sizes of alltoall_base count rows of dim 0; empty = equal parts.
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr allgather(std::vector<Tensors>& outputs,
                    Tensors& inputs,
                    const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output,
                          at::Tensor& input,
                          const c10d::AllgatherOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output,
                               at::Tensor& input,
                               const c10d::ReduceScatterOptions& opts) override;
  WorkPtr alltoall_base(at::Tensor& output,
                        at::Tensor& input,
                        std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& opts) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;

 private:
  using Start = std::function<WorkPtr()>;
  // The messages from one rank to another, of which this rank is one.
  struct Messages {
    Link link;
    std::shared_ptr<History> history;
    std::deque<std::function<void()>> to_start;  // receives that are not compared yet, in order
    std::exception_ptr failure;  // failure of a comparison; nothing is started after it
  };

  // Returns "dp_shard (unshard)", for messages.
  std::string title() const { return setup_.axes + " (" + setup_.purpose + ")"; }
  // Counts an operation, and notes it if the rank records.
  void count(const std::shared_ptr<History>& history, Signature& signature, int64_t bytes) const;
  template <class F>
  WorkPtr issue(Signature signature, int64_t bytes, F&& call);
  template <class F>
  WorkPtr start(const Signature& signature, const Link& link, F&& call);
  WorkPtr issue_message(Collective op, Tensors tensors, int peer, int tag);
  Messages& messages_of(const Link& link);
  WorkPtr announce(const Signature& signature, const Link& link, int peer, const Start& message);
  WorkPtr compare_first(const Signature& signature, Messages& messages, int peer, Start message);
  void compare_with_peers(const Signature& signature);
  // Waits for an operation of the check backend that precedes the one with this signature.
  void finish_check(const Start& start, const Signature& signature, const Link& link);

  Setup setup_;
  std::map<std::pair<int32_t, int32_t>, Messages> links_;  // key: from, to
};

}  // namespace yoke
