// The state of a run as whole tensors: assembled from the pieces of all ranks, and split again for
// a LOAD with the same or a different layout.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "yoke/parallel_backend.h"

namespace yoke::conformance {

// A copy of a YokePiece and of its bytes. With DESCRIBE there are no bytes.
struct Piece {
  std::string key;  // "name/kind"
  std::vector<int64_t> shape;
  int32_t dtype = 0;
  int64_t begin = 0, count = 0, run = 0, stride = 0, replica = 0;
  std::vector<char> bytes;

  // Throws Failed if the piece is malformed.
  static Piece copy(const YokePiece& piece);
  // Returns whether both describe the same elements of the same tensor.
  bool same_place(const Piece& other) const;
  std::string text() const;  // every field, for messages
};

// A tensor that is not split.
struct WholeTensor {
  std::vector<int64_t> shape;
  int32_t dtype = 0;
  std::vector<char> bytes;
  bool operator==(const WholeTensor&) const = default;

  int64_t count() const;
  double at(int64_t i) const;  // value of element i; the dtype is fp64, fp32, bf16 or int64
};

using State = std::map<std::string, WholeTensor>;  // keyed by "name/kind"

// Assembles the pieces of all ranks. Pieces whose replica number is not 0 are checked but not used.
// Throws Failed if the pieces with replica 0 do not cover every element exactly once, or if two
// pieces of a tensor have different shapes or dtypes.
State assemble(const std::vector<std::vector<Piece>>& by_rank);

// Fills the view of a piece on LOAD, and converts between floating-point dtypes. For a kind that
// only this backend knows, returns YOKE_NOT_FOUND if the state lacks the tensor, or has it for
// another number of ranks. Throws Failed if the state lacks a kind of the contract.
int32_t fill_piece(const State& state, const YokePiece& piece);

// Returns whether the contract defines the kind of the tensor with this key.
bool is_standard(const std::string& key);

// Returns the state without the kinds that only one backend knows.
State standard_kinds(State state);

// Returns a sentence on the first difference, or "". `relative` is the allowed difference of an
// element divided by the largest magnitude in its tensor of b, but for one element in 10,000; 0
// requires equal bits. A tensor that only one state has is a difference.
std::string difference(const State& a, const State& b, double relative);

// Returns the distance of all tensors of a kind together from those of b, relative to the norm of
// b. Both states have the same tensors.
double distance(const State& a, const State& b, const std::string& kind);

// Writes pieces as text of bytes, and reads them again.
std::string to_bytes(const std::vector<Piece>& pieces);
std::vector<Piece> from_bytes(std::string_view bytes);

}  // namespace yoke::conformance
