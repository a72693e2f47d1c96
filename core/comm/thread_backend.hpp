// The c10d backend for ranks that are threads of one process.
#pragma once

#include <chrono>
#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "core/comm/thread_hub.hpp"

namespace yoke {

// One rank's side of a ThreadHub. Tensors are contiguous and in CPU memory. Operations complete
// even if no rank calls wait(). Sums are computed in rank order, so a result has the same bits on
// every rank and in every run. Used by one thread at a time, except abort(), which any thread may
// call.
//
// Operations throw Error(INVALID_ARGUMENT) for unsuitable tensors, and UNAVAILABLE after abort().
// Their works fail with FAILED_PRECONDITION if the ranks do not issue the same collective.
class ThreadBackend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // rank: index of this rank in the hub.
  ThreadBackend(std::shared_ptr<ThreadHub> hub, int rank);

  const std::string getBackendName() const override { return "threads"; }
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
  // Split sizes count rows of dim 0; empty = equal parts.
  WorkPtr alltoall_base(at::Tensor& output,
                        at::Tensor& input,
                        std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& opts) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;
  // Does nothing: the waiting rank passes a timeout to wait().
  void setTimeout(std::chrono::milliseconds) override {}
  // Makes every operation in flight fail, on all ranks of the hub, and every later one.
  void abort() override;

 private:
  WorkPtr post(Contribution contribution, const at::Tensor& of, c10d::OpType type, Tensors results);
  Signature sign(Collective op, const at::Tensor& of, int64_t count, int64_t detail = 0);

  std::shared_ptr<ThreadHub> hub_;
  uint64_t sequence_ = 0;  // number of collectives so far; send and recv are not numbered
};

}  // namespace yoke
