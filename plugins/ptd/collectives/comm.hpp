// The communicators of this rank, as ptd uses them: the host's process groups, called without the
// dispatcher in between. The host's decorator counts, checks and translates errors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "yoke/backend.hpp"

namespace yoke::ptd {

// A collective on its way. Its tensors must live and stay untouched until wait() has returned.
class Work {
 public:
  Work() = default;
  explicit Work(c10::intrusive_ptr<c10d::Work> work) : work_(std::move(work)) {}
  bool pending() const { return work_ != nullptr; }
  // On the CPU until it is over, on an accelerator the current stream waits. Throws Error:
  // UNAVAILABLE, DEADLINE_EXCEEDED, CANCELLED; the work stays pending then.
  void wait();

 private:
  c10::intrusive_ptr<c10d::Work> work_;
};

// The ranks along some axes. A default one is this rank alone.
class Comm {
 public:
  Comm() = default;
  Comm(c10::intrusive_ptr<c10d::Backend> backend, int size, int rank)
      : backend_(std::move(backend)), size_(size), rank_(rank) {}
  // Collective over the world.
  Comm(const YokeCollectives& collectives,
       uint32_t axes,
       const char* purpose,
       at::DeviceType device);

  int size() const { return size_; }
  int rank() const { return rank_; }
  // Compact tensors of any shape.
  Work all_gather(const at::Tensor& out, const at::Tensor& in) const;
  Work reduce_scatter_sum(const at::Tensor& out, const at::Tensor& in) const;
  Work all_reduce_sum(const at::Tensor& inout) const;
  Work all_reduce_max(const at::Tensor& inout) const;
  // in: size() equal pieces along dim 0, one for each rank; out: one from each.
  Work all_to_all(const at::Tensor& out, const at::Tensor& in) const;
  // To the next rank, from the one before; the last one's next is the first.
  Work pass_on(const at::Tensor& out, const at::Tensor& in) const;

 private:
  c10::intrusive_ptr<c10d::Backend> backend_;
  int size_ = 1;
  int rank_ = 0;
};

// One communicator per axis and purpose, so that a reduction never queues behind a gather.
// Parameters are sharded over dp_shard and, unless they are replicated there, cp.
struct Comms {
  Comm unshard;          // the shards
  Comm reduce_grad;      // the shards
  Comm all_reduce_grad;  // dp_replicate, and cp if it does not shard
  Comm cp;
  Comm tp;
  Comm reduce_partial_grads;  // tp, for gradients
  Comm world;

  // Collective over the world. Makes only those with more than one rank.
  static Comms make(const YokePlan& plan,
                    bool shard_over_cp,
                    const YokeHost& host,
                    at::DeviceType device);
};

}  // namespace yoke::ptd
