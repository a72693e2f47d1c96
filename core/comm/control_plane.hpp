// Communication between ranks that is not training traffic: comparing values, exchanging texts and
// posting notes. None of it appears in the counters of the collectives.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/comm/divergence.hpp"
#include "core/comm/transport.hpp"

namespace yoke {

// One per rank; one thread at a time. "Collective" means over all ranks of the world, in the same
// order on all of them. In a world of one rank every function returns at once.
class ControlPlane {
 public:
  // `transport` is null in a world of one rank, and otherwise outlives this object.
  ControlPlane(const Rendezvous& rendezvous, Transport* transport, const CommOptions& options);

  // ---- Through the rendezvous store; each call takes milliseconds ----

  // Throws Error(FAILED_PRECONDITION), naming the first rank that differs and both values, unless
  // all ranks pass the same `what` and `value`. Collective.
  void agree(const std::string& what, const std::string& value);
  // Returns rank 0's value on every rank. Throws Error(FAILED_PRECONDITION) if rank 0 passed a
  // different key. Collective.
  std::string from_rank0(const std::string& key, const std::string& value);
  // Sends every rank's text to rank 0, which calls `compare` on them in rank order. All ranks
  // return its result. Collective. `purpose` becomes part of the store's key.
  std::optional<std::string> compare_on_rank0(const std::string& purpose,
                                              const std::string& mine,
                                              const Comparison& compare);
  // Returns when all ranks have called it, however long that takes: the wait ends early only if a
  // rank is lost or the cancel flag is set. `what` is what the ranks wait for, for the message of a
  // cancelled wait. Collective.
  void await_all(const std::string& what);
  // Leaves a note for all ranks; returns when all of them have it. Not collective.
  void post(const std::string& key, const std::string& value);
  // Returns the note if it has been posted. Takes less than a microsecond between processes. Not
  // collective.
  std::optional<std::string> peek(const std::string& key);

  // ---- Through a group of all ranks, made at the first use; each call takes microseconds ----

  // Returns every rank's text in rank order. Collective.
  std::vector<std::string> gather_texts(const std::string& mine);
  // Returns the numbers of all ranks in rank order: world size x mine.size() values. `mine` has the
  // same size on every rank. `what` names the operation in error messages. Collective.
  std::vector<int64_t> gather_numbers(const std::vector<int64_t>& mine, const char* what);
  // Returns when all ranks have called it. Collective.
  void barrier(const char* what);

  // Makes the operations in flight fail, here and on the peers. Nothing may be called afterwards.
  void abort();

 private:
  std::string next_key(const std::string& purpose);
  std::string value_of_rank0(const std::string& key, const std::string& value);
  c10d::Backend& group();
  template <class Start>
  void run(const char* what, Start&& start);

  const int32_t rank_;
  const int32_t size_;
  const CommOptions options_;
  Transport* const transport_;
  Mailbox mailbox_;
  uint64_t exchanges_ = 0;  // number of exchanges so far; the same on every rank
  c10::intrusive_ptr<c10d::Backend> group_;
};

}  // namespace yoke
