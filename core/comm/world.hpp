// The interface through which one rank works with the others: comparing values, communicators and
// counters.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/comm/recorded_operations.hpp"
#include "core/comm/rendezvous.hpp"

namespace yoke {

class CollectiveLog;
class Communicators;
class ControlPlane;
class Member;
class Transport;

// The world as one rank sees it; made once per rank. It is composed of
//
//   ControlPlane    comparing values, exchanging texts, posting notes
//   Communicators   the communicators, one for each set of axes and purpose
//   CollectiveLog   counters, and the check that all ranks issue the same collectives
//
// "Collective" means that all ranks of the world call the function in the same order. Collective
// functions throw Error(UNAVAILABLE) if a peer is lost, DEADLINE_EXCEEDED after the timeout and
// CANCELLED if the cancel flag is set. One thread at a time.
class World {
 public:
  // Connects to the store and waits until every rank is present. Collective. A world of one rank
  // needs no store. Throws Error: INVALID_ARGUMENT for a rendezvous that cannot work (a port in
  // use, a host that cannot be resolved), UNAVAILABLE if ranks are missing after the timeout.
  static std::unique_ptr<World> connect(const Rendezvous& rendezvous, const CommOptions& options);
  // Without shutdown() the destructor closes the connections, and peers that wait for this rank get
  // UNAVAILABLE.
  ~World();

  int32_t rank() const { return rank_; }
  int32_t size() const { return size_; }
  // Returns true if the ranks are threads of one process.
  bool in_threads() const { return in_threads_; }
  // Returns the timeout of each collective.
  std::chrono::milliseconds timeout() const { return options_.timeout; }
  // Returns how tensors travel between the ranks, for the user: "Gloo"; "" in a world of one rank.
  std::string transport() const;
  RankDevice* device() const { return options_.device; }  // device of all tensors; NULL = CPU
  // Returns the control connection of this rank; NULL if the ranks are threads or there is one.
  Member* member() const { return options_.member; }

  // ---- Control plane ----

  // Throws Error(FAILED_PRECONDITION), naming the first rank that differs and both values, unless
  // all ranks pass the same value, e.g. the plan's hash. Collective.
  void agree(const std::string& what, const std::string& value);
  // Returns rank 0's value on every rank. Collective.
  std::string from_rank0(const std::string& key, const std::string& value);
  // Returns every rank's text in rank order. Collective.
  std::vector<std::string> gather_texts(const std::string& mine);
  // Returns when all ranks have called it, however long that takes. Call it where the ranks read or
  // write files, before the next operation of the world: each of them is limited by timeout(). If a
  // rank is lost, the wait ends. `what` is what the ranks wait for, for the message of a cancelled
  // wait: "rank 0 to choose a folder". Collective.
  void await_all(const std::string& what);
  // Leaves a note for all ranks; returns when all of them have it. Not collective. A world of one
  // rank has no notes.
  void post(const std::string& key, const std::string& value);
  // Returns the note if it has been posted. Not collective; it takes microseconds, so that it can
  // be called before every step.
  std::optional<std::string> peek(const std::string& key);

  // ---- Communicators ----

  // Sets how the ranks are arranged; must be called once, before the first comm().
  void set_mesh(const Mesh& mesh);
  // Returns the communicator of the ranks that differ from this one only in `axes`. The same pair
  // (axes, purpose) always returns the same object, which lives as long as the world. Collective at
  // the first call of each pair.
  Communicator& comm(uint32_t axes, const std::string& purpose);
  // Throws Error(UNAVAILABLE) or DEADLINE_EXCEEDED if a collective on a device has failed. On the
  // CPU wait() reports all failures. Not collective.
  void require_alive();

  // ---- Collective log ----

  // Returns the counts since the last reset, summed over all purposes; key: name of the axes
  // ("dp_shard").
  std::map<std::string, CommCount> counts() const;
  void reset_counts();
  // Returns the counts since the start.
  std::vector<OperationCount> counts_by_operation() const;
  // Start and end a recording of the operations that this rank issues, which a device records. The
  // device executes them only when it replays its recording, so call count_again() of the result in
  // every replay but the first.
  void start_recording();
  RecordedOperations end_recording();
  // Returns the latest collectives of each communicator, and the latest messages between this rank
  // and another, at most 100 each, oldest first, as texts. Any thread may call it.
  std::map<std::string, std::vector<std::string>> latest_collectives() const;
  // Returns the `numbers` of all ranks, in rank order; all ranks pass equally many. Unless
  // comm.check = off, throws Error(FAILED_PRECONDITION), naming the first difference, if the ranks
  // of a communicator have issued different collectives so far, or in another order, or if the
  // messages that a rank has received from another one are not those that the other one has sent.
  // One all_gather of 24 bytes per rank and the numbers, which is not counted. Requires set_mesh().
  // Collective.
  std::vector<std::vector<int64_t>> check_collectives(const std::vector<int64_t>& numbers = {});

  // Says which step this rank is doing, for the messages about it.
  void set_step(int64_t step);

  // Ends the world with a barrier, after which no operation may be issued. Collective.
  void shutdown();

 private:
  World(const Rendezvous& rendezvous, const CommOptions& options);

  const int32_t rank_;
  const int32_t size_;
  const bool in_threads_;
  std::unique_ptr<Transport> transport_;  // null for a world of one rank
  const CommOptions options_;
  std::unique_ptr<ControlPlane> control_;
  std::unique_ptr<CollectiveLog> log_;
  std::unique_ptr<Communicators> communicators_;
  bool ended_ = false;
};

// Creates the state that ranks share when they are threads of one process: one object for all. If a
// World is destroyed without shutdown(), it aborts this state, so that every waiting rank gets
// UNAVAILABLE with the first reason. The rank that failed first can be recognised, because its
// error has a different code.
std::shared_ptr<VirtualWorld> make_virtual_world(int32_t world_size);

}  // namespace yoke
