// The communicators of this rank: the host's process groups, called without LibTorch's dispatcher
// in between. The host wraps these groups, so it still counts every collective, checks that ranks
// agree, and translates errors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <array>
#include <initializer_list>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "sdk/mesh/schedule/message_comms.hpp"
#include "yoke/backend.hpp"

namespace yoke::mesh {

// A Work is a collective in flight, or none. Its tensors must stay alive and untouched until wait()
// has returned.
class Work {
 public:
  Work() = default;
  explicit Work(c10::intrusive_ptr<c10d::Work> work) : work_(std::move(work)) {}
  bool pending() const { return work_ != nullptr; }
  // Waits for the result. On the CPU it blocks until the result is available; on an accelerator it
  // only makes the current stream wait. Does nothing if nothing is pending. Throws Error:
  // UNAVAILABLE, DEADLINE_EXCEEDED or CANCELLED; the work stays pending then. The destructor does
  // not wait.
  void wait();

 private:
  c10::intrusive_ptr<c10d::Work> work_;
};

// The communicator of the ranks along some axes of the world. A default-constructed one has only
// this rank. Used by one thread at a time.
class Comm {
 public:
  Comm() = default;
  Comm(c10::intrusive_ptr<c10d::Backend> backend, int size, int rank)
      : backend_(std::move(backend)), size_(size), rank_(rank) {}
  // Requests the communicator along `axes` with that purpose from the host. Collective over the
  // world. Throws Error(FAILED_PRECONDITION) if the host's communicators are not
  // c10d::ProcessGroup.
  Comm(const YokeCollectives& collectives,
       uint32_t axes,
       const char* purpose,
       at::DeviceType device);

  int size() const { return size_; }
  int rank() const { return rank_; }

  // Each function starts a collective and returns at once. Tensors are contiguous, of any shape and
  // on the device of the communicator. all_gather: `out` has size() times the elements of `in`.
  // reduce_scatter_sum: `in` has size() times the elements of `out`.
  Work all_gather(const at::Tensor& out, const at::Tensor& in) const;
  Work reduce_scatter_sum(const at::Tensor& out, const at::Tensor& in) const;
  Work all_reduce_sum(const at::Tensor& inout) const;
  Work all_reduce_max(const at::Tensor& inout) const;
  // Cuts `in` into size() equal pieces along dim 0 and sends piece r to rank r. `out` receives one
  // piece from each rank.
  Work all_to_all(const at::Tensor& out, const at::Tensor& in) const;
  // Sends `in` to the next rank and receives `out` from the previous one, in a ring.
  Work pass_on(const at::Tensor& out, const at::Tensor& in) const;
  // Sends a tensor to one rank of the communicator, or receives one of the same size from it. Two
  // ranks must issue the messages of one direction in the same order; tag: the same on both.
  Work send(const at::Tensor& in, int to, int tag) const;
  Work receive(const at::Tensor& out, int from, int tag) const;
  // Adds to a tensor that of another rank, which must do the same. Both get the same bits. Waits
  // for the result.
  void add_from(const at::Tensor& inout, int peer) const;

 private:
  c10::intrusive_ptr<c10d::Backend> backend_;
  int size_ = 1;
  int rank_ = 0;
};

// The communicators that dividing a model needs: one per axis and purpose, so that a message never
// waits in the queue of another kind.
struct ModelComms {
  // Ranks of pp, for the messages between stages, by message_comm(). Those without messages are
  // default-constructed.
  std::array<Comm, kMessageComms> messages;
  Comm tied;                  // ranks of pp, for the gradients of parameters that two of them have
  Comm cp;                    // ranks of cp, for operators on distributed tensors
  Comm tp;                    // ranks of tp, for operators on distributed tensors
  Comm reduce_partial_grads;  // ranks of tp

  // Makes the communicators that have more than one rank. stages_return: a pipeline passes outputs
  // to lower ranks as well. Collective over the world. Throws Error(FAILED_PRECONDITION) if the
  // host has no collectives.
  static ModelComms make(const YokePlan& plan, bool stages_return, const YokeHost& host);

  int pp_rank() const { return tied.rank(); }
  int pp_size() const { return tied.size(); }
};

// Returns the host's collectives. Throws Error(FAILED_PRECONDITION) if it has none.
const YokeCollectives& collectives_of(const YokeHost& host);

// Returns the communicator of the ranks along some axes, without those of degree 1; a
// default-constructed one if none is left. Collective over the world. Throws
// Error(FAILED_PRECONDITION) if the host has no collectives.
Comm comm_along(std::initializer_list<int> axes,
                const char* purpose,
                const YokePlan& plan,
                const YokeHost& host);

// Returns the type of the device of a host.
at::DeviceType device_type(const YokeHost& host);

}  // namespace yoke::mesh
