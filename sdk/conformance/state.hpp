// The state of a run, whole: put together from the pieces of all ranks, and cut again for others.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "yoke/parallel_backend.h"

namespace yoke::conformance {

// A piece as a backend showed it, with a copy of its bytes (none on DESCRIBE).
struct Piece {
  std::string key;  // "name/kind"
  std::vector<int64_t> shape;
  int32_t dtype = 0;
  int64_t begin = 0, count = 0, run = 0, stride = 0, replica = 0;
  std::vector<char> bytes;

  static Piece copy(const YokePiece& piece);
  // Does it lie where the other one does?
  bool same_place(const Piece& other) const;
  std::string text() const;  // "up.weight/param [7, 5] elements 0 + 35"
};

struct WholeTensor {
  std::vector<int64_t> shape;
  int32_t dtype = 0;
  std::vector<char> bytes;
  bool operator==(const WholeTensor&) const = default;

  int64_t count() const;
  double at(int64_t i) const;  // of fp64, fp32, bf16, int64
};

using State = std::map<std::string, WholeTensor>;  // by "name/kind"

// Puts the pieces with replica 0 of all ranks together. Throws Failed if they do not tile every
// tensor exactly once, or contradict each other.
State assemble(const std::vector<std::vector<Piece>>& by_rank);

// Fills the view of a piece. Converts between floating dtypes. Returns YOKE_NOT_FOUND for a kind of
// a backend's own that the state does not have; throws Failed for any other tensor that it lacks.
int32_t fill_piece(const State& state, const YokePiece& piece);

// Without kinds of a backend's own.
State standard_kinds(State state);

// "" or the first tensor in which they differ. relative: allowed difference, by the largest
// magnitude of the tensor; 0 = not a bit. Only names in both are compared unless strict.
std::string difference(const State& a, const State& b, double relative);

}  // namespace yoke::conformance
