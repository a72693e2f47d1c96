// The ranks that share DTensors: one to three axes, each with its communicator.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "plugins/ptd/collectives/comm.hpp"
#include "plugins/ptd/dtensor/op_cache.hpp"
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

  // Prints, if set, a line for every operator: its placements and the collectives it caused.
  std::function<void(const std::string& line)> debug;
  // Collectives since the line before; kept only while debug is set.
  std::string traffic;

  // The last all-gather: what a tensor and its views are needed for comes in a row. Forgotten when
  // a tensor is written to. Found by what is the same on every rank, so that all ranks find it.
  struct Gathered {
    int64_t value = 0;  // as DTensorMeta::value
    int axis = -1;
    at::Tensor rows;  // [outer, n, inner]
  };
  Gathered last_gather;
  int64_t last_value = 0;

  OpCache& cache() { return cache_; }

 private:
  std::vector<Axis> axes_;
  Coordinates at_;
  OpCache cache_;
};

}  // namespace yoke::ptd
