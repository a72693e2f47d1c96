// Communicators of one rank: c10d process groups per set of axes and purpose, counted and checked.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/comm/mesh.hpp"

namespace c10d {
class ProcessGroup;
class Store;
class Work;
}  // namespace c10d

namespace yoke {

class RankDevice;

enum class CommCheck { kOff, kStep, kFull };

// Calls, payload bytes and seconds spent in wait(), of one set of axes. Bytes are those of the
// larger side of each operation: all_reduce and broadcast the tensor, all_gather its output,
// reduce_scatter its input. Communicators of one rank count nothing.
struct CommCount {
  int64_t calls = 0;
  int64_t bytes = 0;
  double seconds = 0;
};

// The same of one operation with one dtype ("all_reduce", "fp32").
struct OperationCount {
  std::string axes, operation, dtype;
  CommCount count;
};

// A collective on its way; the tensors stay untouched until wait() returned. On a device wait()
// makes the current stream wait, and returns at once; failures show in require_alive(). wait()
// throws Error: UNAVAILABLE if a peer is lost (naming what is known), DEADLINE_EXCEEDED after the
// timeout, CANCELLED if the cancel flag is set; after these the communicator cannot be used any
// more, on any of its ranks. Dropping a work without wait() does not stop it.
class CommWork {
 public:
  virtual ~CommWork() = default;
  virtual void wait() = 0;
};

// The ranks of one set of axes, for one purpose. One thread at a time. Tensors are compact and on
// the CPU, or the device of the options. Every operation is issued in the same order by all ranks
// of the communicator; operations of different communicators may interleave differently on
// different ranks, because issuing never waits for a peer (except with comm.check = full, where
// each one is compared first: there all communicators need one order). Throws
// Error(INVALID_ARGUMENT) for tensors and operations that do not fit; with comm.check = full
// FAILED_PRECONDITION, before anything is sent, if the ranks do not issue the same collective.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int32_t size() const = 0;
  virtual int32_t rank() const = 0;
  virtual std::unique_ptr<CommWork> all_reduce(at::Tensor inout,
                                               int32_t op) = 0;  // op: YOKE_SUM ...
  virtual std::unique_ptr<CommWork> all_gather(at::Tensor out, at::Tensor in) = 0;
  virtual std::unique_ptr<CommWork> reduce_scatter(at::Tensor out, at::Tensor in, int32_t op) = 0;
  virtual std::unique_ptr<CommWork> broadcast(at::Tensor inout, int32_t root) = 0;
  virtual void barrier() = 0;
  // Front object whose c10d::Backend is the counting and checking decorator; owned by this. NULL
  // for one rank on a device.
  virtual c10d::ProcessGroup* process_group() = 0;
};

// How ranks find each other. Made once per rank.
struct Rendezvous {
  int32_t rank = 0;
  int32_t world_size = 1;
  std::string file_store;   // path: ranks of one machine, no open port
  std::string master_addr;  // or: TCPStore, rank 0 serves
  int32_t master_port = 0;
  bool store_served = false;     // somebody else serves it: torchrun's agent
  std::string attempt;           // of ranks that meet at the same store again; "" = the first
  int32_t local_world_size = 1;  // ranks on this machine; loopback is enough if it is all of them
  std::string interface;         // network interface; "" = by host name, loopback on one machine
  std::shared_ptr<class VirtualWorld> virtual_world;  // or: ranks are threads of this process
};

struct CommOptions {
  CommCheck check = CommCheck::kStep;
  std::chrono::milliseconds timeout{60000};
  const std::atomic<bool>* cancel = nullptr;  // looked at while waiting; may be NULL
  RankDevice* device = nullptr;               // outlives the world
  // Told every five seconds, while the ranks meet, who is there and who is not; may be empty.
  std::function<void(const std::string& text)> progress;
};

// All communicators of one rank.
class CommWorld {
 public:
  // Collective: connects to the store and waits until every rank is there. A world of one rank
  // needs no store. Throws Error: INVALID_ARGUMENT for a meeting place that cannot be (a port in
  // use, a host that cannot be resolved), UNAVAILABLE if ranks are missing after the timeout.
  static std::unique_ptr<CommWorld> connect(const Rendezvous& rendezvous,
                                            const CommOptions& options);
  virtual ~CommWorld() = default;

  virtual int32_t rank() const = 0;
  virtual int32_t size() const = 0;
  virtual bool in_threads() const = 0;                    // the ranks are threads of one process
  virtual std::chrono::milliseconds timeout() const = 0;  // of each collective
  virtual RankDevice* device() const = 0;  // where the tensors of communicators are; NULL = CPU

  // A value that every rank must share, e.g. the plan's hash. Throws Error(FAILED_PRECONDITION)
  // that names the first rank that differs and both values. Collective.
  virtual void agree(const std::string& what, const std::string& value) = 0;
  // Rank 0's value on every rank. Collective.
  virtual std::string from_rank0(const std::string& key, const std::string& value) = 0;

  // Every rank's text, in rank order, on every rank. Uncounted. Collective.
  virtual std::vector<std::string> gather_texts(const std::string& mine) = 0;

  // A note on the store for all ranks, and a look whether it is there. Not collective; a world of
  // one has no notes. The look costs microseconds, so that it can be had before every step.
  virtual void post(const std::string& key, const std::string& value) = 0;
  virtual std::optional<std::string> peek(const std::string& key) = 0;

  // After the plan is known. Must be called before comm().
  virtual void set_mesh(const Mesh& mesh) = 0;
  // The communicator of the ranks that differ from this one only in `axes`; the same object for the
  // same (axes, purpose). Collective over the world at the first call of each pair.
  virtual Communicator& comm(uint32_t axes, const std::string& purpose) = 0;

  // Counts since the last reset, by name of the axes ("dp_shard"), all purposes together.
  virtual std::map<std::string, CommCount> counts() const = 0;
  virtual void reset_counts() = 0;
  // Counts since the start.
  virtual std::vector<OperationCount> counts_by_operation() const = 0;

  // A hash of all collectives issued so far on every communicator of more than one rank (operation,
  // dtype, count, in order per communicator). Equal on all ranks as long as every rank issues the
  // same collectives, i.e. without pipeline stages.
  virtual uint64_t running_hash() const = 0;
  // Names the first collective in which two ranks of one communicator differ, or nothing. Slow (the
  // store). Collective.
  virtual std::optional<std::string> compare_histories() = 0;
  // Unless comm.check = off: do all ranks issue the same collectives? One small uncounted reduction
  // of the running hash; if the ranks differ, throws Error(FAILED_PRECONDITION) with what
  // compare_histories() found. Collective.
  virtual void check_collectives() = 0;

  // Throws Error if a collective on a device failed since the last call: UNAVAILABLE,
  // DEADLINE_EXCEEDED. On the CPU wait() tells all. Not collective.
  virtual void require_alive() = 0;

  // Collective orderly end: a barrier; nothing may be issued after it. Communicators live as long
  // as this object. Without it the destructor closes the connections, and peers that wait for this
  // rank get UNAVAILABLE.
  virtual void shutdown() = 0;
};

// Ranks as threads of one process: shared by the threads, one per run. Aborting wakes every waiting
// rank with UNAVAILABLE and the reason; the first reason counts. A CommWorld that is destroyed
// without shutdown() aborts it too, so the rank that failed first is the one whose error is not
// UNAVAILABLE.
std::shared_ptr<VirtualWorld> make_virtual_world(int32_t world_size);
void abort_virtual_world(VirtualWorld& world, const std::string& reason);

}  // namespace yoke
