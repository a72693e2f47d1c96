// The pieces of state that the ranks show, and the rules about all of them together. No
// communication.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "yoke/parallel_backend.h"

namespace yoke::validate {

// A piece without its contents.
struct PieceKey {
  std::string name, kind;
  std::vector<int64_t> shape;
  int32_t dtype = 0;
  int64_t begin = 0, count = 0, run = 0, stride = 0, replica = 0;
  bool operator==(const PieceKey&) const = default;

  explicit PieceKey(const YokePiece& piece);
  PieceKey() = default;
  // "'a.weight' (param), elements 0 to 9".
  std::string text() const;
};

// The pieces of a rank as bytes, and back.
std::string to_bytes(const std::vector<PieceKey>& pieces);
std::vector<PieceKey> pieces_from_bytes(const std::string& bytes);

// What the pieces must contain.
struct Expected {
  const YokeModelSummary* model;
  const YokeOptimizer* optimizer;      // decides on the moments; NULL = there may be none
  std::vector<std::string> own_kinds;  // declared kinds; empty = any name of the right form
  bool has_own_kinds = false;          // whether own_kinds is complete
};

// Returns what is wrong with one piece, or "". op: YOKE_CHECKPOINT_...
std::string piece_fault(const YokePiece& piece, const Expected& expected, int32_t op);

// A tensor of the state: its pieces with replica 0, and the copies.
struct Holder {
  int32_t rank;
  size_t index;  // index of the piece on that rank
};
// Two sets of pieces that have the same elements, and so the same sum of hashes.
struct Copies {
  std::string tensor;
  std::vector<Holder> saved, copies;
};

// Examines the pieces of all ranks. Returns what is missing or in two pieces, or "". Stores in
// *copies which pieces must have equal contents.
std::string coverage_fault(const std::vector<std::vector<PieceKey>>& by_rank,
                           const Expected& expected,
                           std::vector<Copies>* copies);

}  // namespace yoke::validate
