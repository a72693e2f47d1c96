// Communicators of one rank: c10d process groups per set of axes and purpose, counted and checked.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/comm/mesh.hpp"

namespace c10d {
class ProcessGroup;
class Store;
class Work;
}  // namespace c10d

namespace yoke {

enum class CommCheck { kOff, kStep, kFull };

// Calls, payload bytes as passed to c10d, and seconds spent waiting, of one set of axes.
struct CommCount {
  int64_t calls = 0;
  int64_t bytes = 0;
  double seconds = 0;
};

// A collective on its way. wait() throws Error: UNAVAILABLE if a peer is lost (naming what is known),
// DEADLINE_EXCEEDED after the timeout, CANCELLED if the cancel flag is set.
class CommWork {
 public:
  virtual ~CommWork() = default;
  virtual void wait() = 0;
};

// The ranks of one set of axes, for one purpose. One thread at a time.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int32_t size() const = 0;
  virtual int32_t rank() const = 0;
  virtual std::unique_ptr<CommWork> all_reduce(at::Tensor inout, int32_t op) = 0;  // op: YOKE_SUM ...
  virtual std::unique_ptr<CommWork> all_gather(at::Tensor out, at::Tensor in) = 0;
  virtual std::unique_ptr<CommWork> reduce_scatter(at::Tensor out, at::Tensor in, int32_t op) = 0;
  virtual std::unique_ptr<CommWork> broadcast(at::Tensor inout, int32_t root) = 0;
  virtual void barrier() = 0;
  // Front object whose c10d::Backend is the counting and checking decorator; owned by this.
  virtual c10d::ProcessGroup* process_group() = 0;
};

// How ranks find each other. Made once per rank.
struct Rendezvous {
  int32_t rank = 0;
  int32_t world_size = 1;
  std::string file_store;                        // path: ranks of one machine, no open port
  std::string master_addr;                       // or: TCPStore, rank 0 serves
  int32_t master_port = 0;
  std::shared_ptr<class VirtualWorld> virtual_world;  // or: ranks are threads of this process
};

struct CommOptions {
  CommCheck check = CommCheck::kStep;
  std::chrono::milliseconds timeout{60000};
  const std::atomic<bool>* cancel = nullptr;  // looked at while waiting; may be NULL
};

// All communicators of one rank.
class CommWorld {
 public:
  // Collective: connects to the store. World of one rank needs no store.
  static std::unique_ptr<CommWorld> connect(const Rendezvous& rendezvous, const CommOptions& options);
  virtual ~CommWorld() = default;

  virtual int32_t rank() const = 0;
  virtual int32_t size() const = 0;

  // A value that every rank must share, e.g. the plan's hash. Throws Error(FAILED_PRECONDITION) that
  // names the first rank that differs and both values. Collective.
  virtual void agree(const std::string& what, const std::string& value) = 0;
  // Rank 0's value on every rank. Collective.
  virtual std::string from_rank0(const std::string& key, const std::string& value) = 0;

  // After the plan is known. Must be called before comm().
  virtual void set_mesh(const Mesh& mesh) = 0;
  // The communicator of the ranks that differ from this one only in `axes`; the same object for the same
  // (axes, purpose). Collective over the world at the first call of each pair.
  virtual Communicator& comm(uint32_t axes, const std::string& purpose) = 0;

  // Counts since the last reset, by name of the axes ("dp_shard"), all purposes together.
  virtual std::map<std::string, CommCount> counts() const = 0;
  virtual void reset_counts() = 0;

  // comm.check = step: a hash of all collectives issued so far on every communicator (operation, dtype,
  // count, in order), to ride in a reduction; and its comparison, which names the disagreement.
  virtual uint64_t running_hash() const = 0;

  // Collective orderly end: a barrier, then the groups. Without it the destructor only drops everything.
  virtual void shutdown() = 0;
};

// Ranks as threads of one process: shared by the threads, one per run. abort() wakes every waiting rank.
std::shared_ptr<VirtualWorld> make_virtual_world(int32_t world_size);
void abort_virtual_world(VirtualWorld& world);

}  // namespace yoke
