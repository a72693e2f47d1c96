// c10d backend for ranks that are threads of one process.
#pragma once

#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "core/comm/thread_hub.hpp"

namespace yoke {

// One rank's end of a hub. Works complete without anybody waiting for them; sums are in rank order,
// so the result has the same bits on every run and every rank. One thread at a time per rank;
// abort() from any thread. CPU tensors, contiguous.
class ThreadBackend final : public c10d::Backend {
 public:
  ThreadBackend(std::shared_ptr<ThreadHub> hub, int rank);

  const std::string getBackendName() const override { return "threads"; }
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
  // Split sizes count rows of dim 0; empty = equal parts.
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output,
                                               at::Tensor& input,
                                               std::vector<int64_t>& output_splits,
                                               std::vector<int64_t>& input_splits,
                                               const c10d::AllToAllOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from, int tag) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& opts) override;
  // Wakes every rank of the hub; the communicator cannot be used any more.
  void abort() override;

 private:
  c10::intrusive_ptr<c10d::Work> post(Contribution contribution,
                                      const at::Tensor& of,
                                      c10d::OpType type,
                                      std::vector<at::Tensor> results);
  Signature sign(Collective op, const at::Tensor& of, int64_t count, int64_t detail = 0);

  std::shared_ptr<ThreadHub> hub_;
  uint64_t sequence_ = 0;
};

}  // namespace yoke
