// A communicator: the collectives among the ranks of one set of axes, counted and checked.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/comm/mesh.hpp"
#include "core/cuda/nccl_settings.hpp"

namespace c10d {
class ProcessGroup;
}  // namespace c10d

namespace yoke {

class Member;
class RankDevice;

// How the ranks check that they issue the same collectives and messages. kOff: not at all. kStep:
// by one hash per step. kFull: collectives are compared before they start; a message is compared by
// its receiver, in wait(), before it is received.
enum class CommCheck { kOff, kStep, kFull };

// How ranks that are processes exchange tensors in CPU memory. kAuto: through shared memory if all
// ranks of the communicator are on one machine, else over Gloo. kShm requires shared memory.
enum class CommTransport { kAuto, kGloo, kShm };

// Counters of one set of axes. Bytes are those of the larger side of each operation: the tensor of
// all_reduce and broadcast, the output of all_gather, the input of reduce_scatter. Communicators
// with a single member count nothing.
struct CommCount {
  int64_t calls = 0;
  int64_t bytes = 0;
  double seconds = 0;  // time spent in wait(); 0 on a device
};

// Counters of one operation with one dtype.
struct OperationCount {
  std::string axes;       // "dp_shard"
  std::string operation;  // "all_reduce"
  std::string dtype;      // "fp32"
  CommCount count;
};

// Settings that all communicators of a rank share.
struct CommOptions {
  CommCheck check = CommCheck::kStep;
  CommTransport transport = CommTransport::kAuto;
  std::chrono::milliseconds timeout{60'000};        // limit of each collective
  std::chrono::milliseconds join_timeout{600'000};  // limit of the wait for all ranks
  std::chrono::milliseconds lost_after{2000};  // a silent rank is lost after this time; 0 = never
  const std::atomic<bool>* cancel = nullptr;   // checked during every wait; may be NULL
  RankDevice* device = nullptr;             // device of all tensors; NULL = CPU. Outlives the world
  NcclSettings nccl{};                      // only for a device
  const std::atomic<bool>* stop = nullptr;  // ends the wait for all ranks; may be NULL
  // The control connection, checked during every wait; set by World. NULL = none.
  Member* member = nullptr;
  // Called every five seconds until all ranks have arrived, with one sentence that names the
  // missing ranks. May be empty.
  std::function<void(const std::string& text)> progress;
};

// A collective in flight. The tensors must stay untouched until wait() has returned. Destroying the
// work without wait() does not stop the collective.
class CommWork {
 public:
  virtual ~CommWork() = default;
  // Returns when the result is in place. On a device it makes the current stream wait and returns
  // at once; failures are reported by require_alive() of the world. Throws Error: UNAVAILABLE if a
  // peer is lost, naming what is known about it; DEADLINE_EXCEEDED after the timeout; CANCELLED if
  // the cancel flag is set. After any of these errors, no rank can use the communicator any more.
  virtual void wait() = 0;
};

// The ranks of one set of axes, for one purpose. One thread at a time.
//
// Tensors are contiguous, in CPU memory or on CommOptions::device. All ranks of a communicator
// issue its operations in the same order. Operations of different communicators may interleave
// differently on different ranks, because issuing never waits for a peer. With comm.check = full,
// issuing does wait for the peers, so all ranks must then use one common order for the operations
// of all communicators.
//
// Every operation throws Error(INVALID_ARGUMENT) for tensors that violate these rules. With
// comm.check = full it throws Error(FAILED_PRECONDITION), before the collective starts, if the
// ranks do not issue the same one. `op` is YOKE_SUM, YOKE_AVG, YOKE_MAX or YOKE_MIN.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int32_t size() const = 0;
  virtual int32_t rank() const = 0;  // index of this rank among the ranks of the communicator

  // inout: any shape; replaced by the reduction over all ranks.
  virtual std::unique_ptr<CommWork> all_reduce(at::Tensor inout, int32_t op) = 0;
  // out has size() times the elements of in, and receives the inputs of all ranks in rank order.
  virtual std::unique_ptr<CommWork> all_gather(at::Tensor out, at::Tensor in) = 0;
  // in has size() times the elements of out: one equal part per rank. Rank r receives the reduction
  // of part r.
  virtual std::unique_ptr<CommWork> reduce_scatter(at::Tensor out, at::Tensor in, int32_t op) = 0;
  // root: a rank of the communicator.
  virtual std::unique_ptr<CommWork> broadcast(at::Tensor inout, int32_t root) = 0;
  virtual void barrier() = 0;
  // A message to or from another rank of the communicator. Not collective; messages from one rank
  // to another arrive in order. On a device, both ranks issue their messages in the same order.
  virtual std::unique_ptr<CommWork> send(at::Tensor in, int32_t to) = 0;
  virtual std::unique_ptr<CommWork> recv(at::Tensor out, int32_t from) = 0;
  // Part r of `in` becomes part rank() of `out` on rank r. The counts are those of the elements of
  // the parts, in rank order; they add up to the tensor. Empty = equal parts.
  virtual std::unique_ptr<CommWork> all_to_all(at::Tensor out,
                                               std::vector<int64_t> out_counts,
                                               at::Tensor in,
                                               std::vector<int64_t> in_counts) = 0;

  // Returns this communicator as a c10d::ProcessGroup, which the communicator owns. Its collectives
  // are counted and checked like all others. NULL for a communicator with a single member on a
  // device.
  virtual c10d::ProcessGroup* process_group() = 0;
};

}  // namespace yoke
