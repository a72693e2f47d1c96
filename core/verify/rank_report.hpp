// What each rank reports about one step, and a check of all reports together:
// replicas of a parameter must be equal, and each data rank must train on its own samples. No
// LibTorch, no communication.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/comm/mesh.hpp"

namespace yoke {

// One forward of the last block. NaN = not observed.
struct ObservedLoss {
  double sum = 0;
  double weight = 0;  // number of targets
  double scale = 0;   // gradient with respect to the sum, as backward received it
};

// What one rank reports about a step. Fingerprints are those of input_probe.hpp.
struct RankReport {
  std::vector<int64_t> assigned;          // global numbers of the samples assigned to it
  std::vector<uint64_t> assigned_prints;  // fingerprints of these samples
  std::vector<uint64_t> received;         // fingerprints of the inputs of the first block
  bool unreadable = false;                // true if inputs of the first block cannot be read
  std::vector<ObservedLoss> losses;       // one per micro-batch
  std::vector<uint64_t> replica_hashes;   // hashes of the pieces that other ranks also have
  std::vector<uint64_t> param_hashes;     // per parameter: sum over the pieces that this rank saves
};
// Returns the report as text, to be sent to other ranks. rank_report_from_text() is the inverse.
std::string to_text(const RankReport& report);
RankReport rank_report_from_text(const std::string& text);

// Identifies a piece of a parameter by the elements that it contains, independently of its address.
struct PieceKey {
  std::string tensor;
  int64_t begin = 0, count = 0, run = 0, stride = 0;  // as in YokePiece
  bool operator==(const PieceKey&) const = default;
};
std::string to_text(const std::vector<PieceKey>& pieces);

// The pieces of state that several ranks have. Immutable.
class ReplicaMap {
 public:
  // texts: the pieces of every rank as text, in the order of the ranks. rank: this rank.
  ReplicaMap(const std::vector<std::string>& texts, int32_t rank);
  bool empty() const { return groups_.empty(); }
  // Returns the index of this rank's piece `piece` in RankReport.replica_hashes; -1 = no other rank
  // has that piece.
  int64_t slot(size_t piece) const { return slots_[piece]; }

  struct Holder {
    int32_t rank;
    int64_t slot;  // index in replica_hashes of that rank
  };
  // The ranks, at least two, that have the same piece.
  struct Group {
    std::string tensor;
    std::vector<Holder> holders;
  };
  const std::vector<Group>& groups() const { return groups_; }

 private:
  std::vector<Group> groups_;   // groups in the order of the pieces
  std::vector<int64_t> slots_;  // per piece of this rank
};

// A step that is wrong.
struct Violation {
  std::string kind;    // "samples" | "replicas"
  int32_t rank = -1;   // rank at fault; -1 = unknown
  std::string tensor;  // name of the parameter, if kind is "replicas"
  std::string text;    // description without the step
};

// Samples [first, first + count) of a step.
struct GlobalBatch {
  int64_t first = 0, count = 0;
};

// Returns the first violation in the reports of all ranks, in the order of the ranks. Samples are
// checked before replicas, because a rank that trains on wrong samples also has wrong parameters.
std::optional<Violation> find_violation(const std::vector<RankReport>& all,
                                        const ReplicaMap& replicas,
                                        const Mesh& mesh,
                                        const GlobalBatch& batch);

}  // namespace yoke
