// Decorator that every communicator puts over its transport: counts, checks, translates errors.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/comm/signature.hpp"
#include "core/comm/waiting.hpp"

namespace yoke {

// Traffic of one set of axes, by operation and at::ScalarType. Written by the rank's threads, read
// by the metrics.
class Traffic {
 public:
  using Counts = std::map<std::pair<Collective, int32_t>, CommCount>;

  void issued(const Signature& signature, int64_t bytes);
  void waited(const Signature& signature, std::chrono::nanoseconds time);
  Counts counts() const;

 private:
  mutable std::mutex mutex_;
  Counts counts_;
};

// Over any c10d backend; itself one, so that whoever holds the ProcessGroup is counted too.
//   counts   calls, bytes of the larger side of each operation (all_gather: out, reduce_scatter:
//   in), and
//            the time spent in wait() of its works: none on a device. Waiting on a work's future is
//            not seen.
//   checks   remembers each collective; with a check backend, compares (operation, dtype, count,
//   detail,
//            sequence) with the other ranks before each one. send and recv are counted only.
//   errors   Error with the codes of CommWork, from the call, the work and its future.
// After CANCELLED and DEADLINE_EXCEEDED the transport is aborted: the communicator is lost for all.
class CountingBackend final : public c10d::Backend {
 public:
  struct Setup {
    c10::intrusive_ptr<c10d::Backend> inner;
    c10::intrusive_ptr<c10d::Backend>
        check;  // same ranks, carries only signatures; null = no check
    std::string axes;
    std::string purpose;
    std::vector<int32_t> ranks;  // global, ascending
    CommOptions options;
    std::shared_ptr<Traffic> traffic;
    bool on_device = false;  // a work's wait() queues on the current stream instead of blocking
  };
  CountingBackend(Setup setup, int rank);

  const History& history() const { return history_; }
  Awaited awaited(const Signature& signature) const;
  // For CountedWork.
  void waited(const Signature& signature, std::chrono::nanoseconds time) {
    setup_.traffic->waited(signature, time);
  }
  const CommOptions& options() const { return setup_.options; }
  bool on_device() const { return setup_.on_device; }
  c10d::Backend& transport() const { return *setup_.inner; }
  // Throws Error(UNAVAILABLE) or DEADLINE_EXCEEDED if a collective on a device has failed.
  void require_alive() const;
  void abort() override;
  void shutdown() override { setup_.inner->shutdown(); }

  const std::string getBackendName() const override { return setup_.inner->getBackendName(); }
  void setTimeout(std::chrono::milliseconds timeout) override;
  c10::intrusive_ptr<Options> getBackendOptions() override {
    return setup_.inner->getBackendOptions();
  }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output,
                                                 at::Tensor& input,
                                                 const c10d::AllgatherOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output,
                                               at::Tensor& input,
                                               std::vector<int64_t>& output_splits,
                                               std::vector<int64_t>& input_splits,
                                               const c10d::AllToAllOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from, int tag) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& opts) override;

 private:
  template <class F>
  c10::intrusive_ptr<c10d::Work> issue(Signature signature, int64_t bytes, F&& call);
  void compare_with_peers(const Signature& signature);

  Setup setup_;
  History history_;
};

}  // namespace yoke
