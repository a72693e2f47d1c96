// What the ranks know about one step, and whether it proves that replicas stay equal and the data
// is split right. No LibTorch, no communication.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/comm/mesh.hpp"

namespace yoke {

// One forward of the last block. NaN = not seen.
struct ObservedLoss {
  double sum = 0, weight = 0;
  double scale = 0;  // gradient that came back for the sum
};

// What one rank knows. Fingerprints are those of probe.hpp.
struct RankReport {
  std::vector<int64_t> dealt;          // global numbers of the samples that the host gave it
  std::vector<uint64_t> dealt_prints;  // of these
  std::vector<uint64_t> fed;           // of the sequences, or slices, that entered the first block
  bool blind = false;                  // the first block took tensors that cannot be read
  std::vector<ObservedLoss> losses;
  std::vector<uint64_t> shared;  // hash of every piece that other ranks hold too
  std::vector<uint64_t> sums;    // per parameter: hashes of the pieces that are this rank's to save
};
std::string to_text(const RankReport& report);
RankReport rank_report_from_text(const std::string& text);

// Which piece of which parameter: its place in memory does not matter, only what it holds.
struct PieceKey {
  std::string tensor;
  int64_t begin = 0, count = 0, run = 0, stride = 0;  // as in YokePiece
  bool operator==(const PieceKey&) const = default;
};
std::string to_text(const std::vector<PieceKey>& pieces);

// The pieces of state that several ranks hold.
class ReplicaMap {
 public:
  // texts: the pieces of every rank, in rank order.
  ReplicaMap(const std::vector<std::string>& texts, int32_t rank);
  bool empty() const { return groups_.empty(); }
  // The place of piece i of this rank in RankReport.shared; -1 = nobody else holds it.
  int64_t slot(size_t piece) const { return slots_[piece]; }

  struct Holder {
    int32_t rank;
    int64_t slot;
  };
  struct Group {
    std::string tensor;
    std::vector<Holder> holders;
  };
  const std::vector<Group>& groups() const { return groups_; }

 private:
  std::vector<Group> groups_;  // in the order of the pieces
  std::vector<int64_t> slots_;
};

// What must not be.
struct Violation {
  std::string kind;    // "samples" | "replicas"
  int32_t rank = -1;   // the one at fault, as far as can be told
  std::string tensor;  // of replicas
  std::string text;    // for people, without the step
};

// Samples [first, first + count) of a step.
struct GlobalBatch {
  int64_t first = 0, count = 0;
};

// all: of every rank, in rank order. The first violation, data before replicas: a rank that trains on
// wrong data has wrong parameters too.
std::optional<Violation> find_violation(const std::vector<RankReport>& all,
                                  const ReplicaMap& replicas,
                                  const Mesh& mesh,
                                  const GlobalBatch& batch);

}  // namespace yoke
