// Where each parameter of a unit lies in the unit's flat buffer, and which part of it each rank
// keeps. Pure arithmetic in elements; no LibTorch.
//
//   |<------------------------ numel() ------------------------->|   shards = 3
//   | p0 ......... |pad| p1 ... |pad| p2 ............. |   pad   |
//   |<-- shard 0 ------->|<-- shard 1 ------->|<-- shard 2 ----->|   shard_numel() each
//
// The whole buffer is the concatenation of the shards, so an all-gather needs no copy afterwards:
// the parameters are views into its result. A rank's part of a parameter is a flat row-major range.
#pragma once

#include <cstdint>
#include <vector>

#include "sdk/mesh/schedule/units.hpp"

namespace yoke::mesh {

inline constexpr int64_t kAlignBytes = 64;  // alignment of parameters and shards: one cache line

// Elements [begin, begin + count) of a parameter, stored from element `offset` of the shard on.
struct ShardPiece {
  int64_t begin = 0;
  int64_t count = 0;  // 0 = the shard has no element of the parameter
  int64_t offset = 0;
};

// A contiguous range of a flat tensor.
struct FlatRange {
  int64_t begin, count;  // first element, and number of elements
};

// A contiguous range of a flat tensor in which all parameters, and their padding, have the same
// flags.
struct FlatSpan {
  int64_t begin, count;  // first element, and number of elements
  bool decay;            // weight decay applies
  // True if tp has several ranks but does not cut the parameters: all of its ranks hold the same
  // values.
  bool tp_replicated;
  bool counted = true;  // as in ParamSpec
};

class FlatLayout {
 public:
  // The range of the buffer that belongs to one parameter.
  struct Slot {
    int param;       // index in the model
    int64_t offset;  // first element in the whole buffer
    int64_t numel;
  };

  // item_size: bytes of an element in the compute type. Offsets are aligned for the narrowest type
  // that a buffer with this layout will hold, which has one byte if the unit is gathered in fp8.
  FlatLayout(const ModelSpec& model, const Unit& unit, int shards, int64_t item_size);

  const std::vector<Slot>& slots() const { return slots_; }  // slots in buffer order
  int64_t numel() const { return shard_numel_ * shards_; }
  int64_t shard_numel() const { return shard_numel_; }
  // Spans of the whole buffer, in order, without the padding at its end.
  const std::vector<FlatSpan>& spans() const { return spans_; }
  // Returns the part of a parameter that lies in a shard.
  ShardPiece piece(const Slot& slot, int shard) const;

 private:
  std::vector<Slot> slots_;
  int64_t shards_;
  int64_t shard_numel_ = 0;
  std::vector<FlatSpan> spans_;
};

}  // namespace yoke::mesh
