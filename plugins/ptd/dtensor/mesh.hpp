// The ranks that share DTensors: one to three axes, each with its communicator.
#pragma once

#include <string>
#include <vector>

#include "plugins/ptd/collectives/comm.hpp"
#include "plugins/ptd/dtensor/gather_memo.hpp"
#include "plugins/ptd/dtensor/op_cache.hpp"
#include "plugins/ptd/dtensor/op_trace.hpp"
#include "plugins/ptd/dtensor/placement.hpp"

namespace yoke::ptd {

// How attention over a sequence that is cut along an axis gets at the keys and values of the
// others.
enum class SequenceExchange : uint8_t {
  kRing,       // they go round, one neighbour at a time: least memory
  kAllGather,  // gathered at once: fewest messages
};
// Which part of the sequence the ranks of an axis hold, in causal attention.
enum class SequenceOrder : uint8_t {
  kPlain,     // rank r the r-th part
  kHeadTail,  // of 2 * size parts the r-th from the front and the r-th from the back: equal work
};

// The view of one rank. Lives longer than every DTensor on it; one thread at a time. Ranks as
// threads have a mesh each.
class Mesh {
 public:
  struct Axis {
    std::string name;
    Comm comm;
    bool cuts_parameters = true;  // false: parameters are Replicate along it
    // Partial results of three or more dims become Shard(1) where they are needed as values, not
    // Replicate: sequence parallelism.
    bool sequence_parallel = false;
    // Softmax over a dim that is cut along it stays cut.
    bool loss_parallel = true;
    SequenceExchange exchange = SequenceExchange::kRing;
    SequenceOrder order = SequenceOrder::kPlain;
  };

  explicit Mesh(std::vector<Axis> axes);
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  int ndim() const { return static_cast<int>(axes_.size()); }
  const Axis& axis(int a) const { return axes_[a]; }
  int size(int a) const { return at_[a].size; }
  int rank(int a) const { return at_[a].rank; }
  const Coordinates& coordinates() const { return at_; }

  // The dispatcher's state for the DTensors of this mesh. A mesh holds it because ranks may be
  // threads of one process, and each has a mesh of its own.
  OpCache& cache() { return cache_; }
  GatherMemo& gathers() { return gathers_; }
  OpTrace& trace() { return trace_; }

 private:
  std::vector<Axis> axes_;
  Coordinates at_;
  OpCache cache_;
  GatherMemo gathers_;
  OpTrace trace_;
};

}  // namespace yoke::ptd
