// The communicators of this rank: the host's process groups, called without LibTorch's dispatcher
// in between. The host wraps these groups, so it still counts every collective, checks that ranks
// agree, and translates errors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "yoke/backend.hpp"

namespace yoke::ptd {

// A Work is a collective in flight, or none. Its tensors must stay alive and untouched until wait()
// has returned.
class Work {
 public:
  Work() = default;
  explicit Work(c10::intrusive_ptr<c10d::Work> work) : work_(std::move(work)) {}
  bool pending() const { return work_ != nullptr; }
  // Waits for the result: on the CPU until it is there, on an accelerator only the current stream
  // waits. Does nothing if nothing is pending. Throws Error: UNAVAILABLE, DEADLINE_EXCEEDED or
  // CANCELLED; the work stays pending then. The destructor does not wait.
  void wait();

 private:
  c10::intrusive_ptr<c10d::Work> work_;
};

// The ranks along some axes. A default-constructed one is this rank alone. One thread at a time.
class Comm {
 public:
  Comm() = default;
  Comm(c10::intrusive_ptr<c10d::Backend> backend, int size, int rank)
      : backend_(std::move(backend)), size_(size), rank_(rank) {}
  // Asks the host for the communicator along `axes` with that purpose. Collective over the world.
  // Throws Error(FAILED_PRECONDITION) if the host's communicators are not c10d::ProcessGroup.
  Comm(const YokeCollectives& collectives,
       uint32_t axes,
       const char* purpose,
       at::DeviceType device);

  int size() const { return size_; }
  int rank() const { return rank_; }

  // Each function starts a collective and returns at once. Tensors are compact, of any shape and on
  // the device of the communicator. all_gather: `out` has size() times the elements of `in`;
  // reduce_scatter_sum: the other way round.
  Work all_gather(const at::Tensor& out, const at::Tensor& in) const;
  Work reduce_scatter_sum(const at::Tensor& out, const at::Tensor& in) const;
  Work all_reduce_sum(const at::Tensor& inout) const;
  Work all_reduce_max(const at::Tensor& inout) const;
  // Sends piece r of size() equal pieces along dim 0 of `in` to rank r. `out` gets a piece from
  // each.
  Work all_to_all(const at::Tensor& out, const at::Tensor& in) const;
  // Sends `in` to the next rank and receives `out` from the one before, in a ring.
  Work pass_on(const at::Tensor& out, const at::Tensor& in) const;

 private:
  c10::intrusive_ptr<c10d::Backend> backend_;
  int size_ = 1;
  int rank_ = 0;
};

// All communicators of a rank: one per axis and purpose, so that a reduction never queues behind a
// gather. The first four are those that actions of the schedule use (CommPurpose). Parameters are
// sharded over dp_shard and, with ptd.shard_over_cp, over cp.
struct Comms {
  Comm unshard;          // the shards of one replica
  Comm reduce_grad;      // the shards of one replica
  Comm all_reduce_grad;  // ranks with the same shard: dp_replicate, and cp if it does not shard
  Comm reduce_partial_grads;  // tp
  Comm world;
  Comm cp;  // for distributed tensors
  Comm tp;  // for distributed tensors

  // Is collective over the world. Makes only those that have more than one rank. Throws
  // Error(FAILED_PRECONDITION) if the host has no collectives.
  static Comms make(const YokePlan& plan,
                    bool shard_over_cp,
                    const YokeHost& host,
                    at::DeviceType device);
};

}  // namespace yoke::ptd
