// Where each parameter of a unit lies in the unit's flat buffer, and which part of it each rank
// keeps.
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

#include "plugins/ptd/schedule/units.hpp"

namespace yoke::ptd {

inline constexpr int64_t kAlignBytes = 64;  // of every parameter and shard: one cache line

// Elements [begin, begin + count) of a parameter, which lie at `offset` of the shard.
struct ShardPiece {
  int64_t begin = 0;
  int64_t count = 0;  // 0 = the shard holds nothing of it
  int64_t offset = 0;
};

class FlatLayout {
 public:
  struct Slot {
    int param;
    int64_t offset;  // in the whole buffer, in elements
    int64_t numel;
  };

  FlatLayout(const ModelSpec& model, const Unit& unit, int shards, int64_t item_size);

  const std::vector<Slot>& slots() const { return slots_; }
  int64_t numel() const { return shard_numel_ * shards_; }
  int64_t shard_numel() const { return shard_numel_; }
  // A row of parameters, with their padding, that are alike in these respects.
  struct Stretch {
    int64_t begin, count;
    bool decay, tp_replicated;
  };
  const std::vector<Stretch>& stretches() const { return stretches_; }
  ShardPiece piece(const Slot& slot, int shard) const;

 private:
  std::vector<Slot> slots_;
  int64_t shards_;
  int64_t shard_numel_ = 0;
  std::vector<Stretch> stretches_;
};

}  // namespace yoke::ptd
