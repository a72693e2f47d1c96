// The ranks that share DTensors: one to three axes, each with its communicator.
#pragma once

#include <string>
#include <vector>

#include "sdk/mesh/collectives/comm.hpp"
#include "sdk/mesh/dtensor/gather_memo.hpp"
#include "sdk/mesh/dtensor/op_cache.hpp"
#include "sdk/mesh/dtensor/op_trace.hpp"
#include "sdk/mesh/dtensor/pending_products.hpp"
#include "sdk/mesh/dtensor/placement.hpp"

namespace yoke::mesh {

// How attention gets the keys and values of the other ranks when the sequence is cut along an axis.
enum class SequenceExchange : uint8_t {
  kRing,       // they are passed around a ring, one rank's at a time, which needs the least memory
  kAllGather,  // they are all gathered at once, which needs the fewest messages
};
// Which part of the sequence each rank of an axis holds.
enum class SequenceOrder : uint8_t {
  // The sequence has one part per rank, and rank r holds part r.
  kPlain,
  // The sequence has two parts per rank. Rank r holds the r-th part from the front and the r-th
  // from the back, which gives all ranks equal work under a causal mask.
  kHeadTail,
};

// One rank's view of these axes. A Mesh must outlive every DTensor on it and is used by one thread
// at a time. Ranks that are threads of one process have a Mesh each.
class Mesh {
 public:
  struct Axis {
    std::string name;
    Comm comm;
    bool cuts_parameters = true;  // false: parameters are Replicate along the axis
    // Selects sequence parallelism: a Partial result of three or more dims becomes Shard(1), not
    // Replicate, when its values are needed.
    bool sequence_parallel = false;
    // Selects loss parallelism: the result of a softmax over a dim that is cut along the axis stays
    // cut.
    bool loss_parallel = true;
    SequenceExchange exchange = SequenceExchange::kRing;
    SequenceOrder order = SequenceOrder::kPlain;
    // With sequence parallelism, the number of pieces in which the rows of a product are gathered,
    // and partial sums of products are reduced; see pieces.hpp. 1 = in one piece, before or after
    // the whole product.
    int pieces = 1;
  };

  // One to kMaxMeshAxes axes, slowest first. Throws Error(INVALID_ARGUMENT) for any other number.
  explicit Mesh(std::vector<Axis> axes);
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  int ndim() const { return static_cast<int>(axes_.size()); }
  const Axis& axis(int a) const { return axes_[a]; }
  int size(int a) const { return at_[a].size; }
  int rank(int a) const { return at_[a].rank; }
  const Coordinates& coordinates() const { return at_; }

  // The dispatcher's state for the DTensors of this mesh. The mesh holds it because it must not be
  // shared between ranks that are threads of one process.
  OpCache& cache() { return cache_; }
  GatherMemo& gathers() { return gathers_; }
  PendingProducts& pending() { return pending_; }
  OpTrace& trace() { return trace_; }

 private:
  std::vector<Axis> axes_;
  Coordinates at_;
  OpCache cache_;
  GatherMemo gathers_;
  PendingProducts pending_;
  OpTrace trace_;
};

}  // namespace yoke::mesh
