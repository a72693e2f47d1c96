// What the c10d backends of ranks that share memory have in common: ThreadBackend and ShmBackend.
#pragma once

#include <chrono>
#include <functional>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "core/comm/contribution.hpp"

namespace yoke {

// Translates c10d's operations into contributions: checks the tensors and signs the operation. A
// subclass brings the contributions of all ranks together.
//
// Tensors are in CPU memory. Strided ones are accepted and cost a copy. Operations throw
// Error(INVALID_ARGUMENT) for unsuitable tensors.
class LocalBackend : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  LocalBackend(int rank, int size) : Backend(rank, size) {}

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

 protected:
  // Starts the next collective of this rank. results: what the work returns.
  virtual WorkPtr post(Contribution mine, c10d::OpType type, Tensors results) = 0;
  // Starts one half of a message. The detail of the signature is the tag.
  virtual WorkPtr post_message(bool send, int peer, Contribution mine, Tensors results) = 0;

 private:
  Signature sign(Collective op, const at::Tensor& of, int64_t count, int64_t detail = 0);

  uint64_t sequence_ = 0;  // number of collectives so far; send and recv are not numbered
};

// The work of an operation between ranks that share memory.
class LocalWork : public c10d::Work {
 public:
  LocalWork(int rank, c10d::OpType type, std::vector<at::Tensor> results)
      : Work(rank, type), results_(std::move(results)) {}

  bool isCompleted() override { return completed(); }
  bool isSuccess() const override { return completed() && exception() == nullptr; }
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  std::vector<at::Tensor> result() override { return results_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 protected:
  // Returns true once the results are in place, or the operation has failed.
  virtual bool completed() const = 0;
  // Throws the error of a completed operation, if it has one.
  virtual void rethrow() const = 0;
  // Returns true when the operation is completed, false after the timeout. kNoTimeout = that of the
  // backend.
  virtual bool wait_for(std::chrono::milliseconds timeout) = 0;
  // Calls f once, when the operation is completed; immediately if it is already. f may run on any
  // thread and keeps this work alive.
  virtual void when_done(std::function<void()> f) = 0;

 private:
  std::vector<at::Tensor> results_;
};

}  // namespace yoke
