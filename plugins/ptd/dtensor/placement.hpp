// How a tensor lies on the ranks of a mesh: one placement per axis. Pure arithmetic over sizes.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <string>
#include <vector>

namespace yoke::ptd {

using Sizes = std::vector<int64_t>;

enum class Reduce : uint8_t { kSum, kAvg, kMax };

// What the ranks along one axis hold of a tensor:
//   Replicate  each the whole
//   Shard      each a part of `dim`, in rank order, cut as at::chunk does: parts of ceil(n / size),
//              the last ones smaller or empty. blocks > 1: the dim is a row of equal blocks and
//              each block is cut so; what becomes of Shard(1) of [B, S] when it is viewed as
//              [B * S]
//   Partial    each a tensor of the whole size; the value is their sum, mean or maximum
struct Placement {
  enum Kind : uint8_t { kReplicate, kShard, kPartial };

  Kind kind = kReplicate;
  Reduce reduce = Reduce::kSum;  // of kPartial
  int16_t dim = 0;               // of kShard
  int32_t blocks = 1;            // of kShard

  bool operator==(const Placement&) const = default;
  bool is_replicate() const { return kind == kReplicate; }
  bool is_shard() const { return kind == kShard; }
  bool is_shard(int64_t d) const { return kind == kShard && dim == d; }
  bool is_partial() const { return kind == kPartial; }
  int64_t bits() const { return std::bit_cast<int64_t>(*this); }
};

inline constexpr Placement replicate() {
  return {};
}
inline constexpr Placement shard(int64_t dim, int64_t blocks = 1) {
  return {Placement::kShard, Reduce::kSum, static_cast<int16_t>(dim), static_cast<int32_t>(blocks)};
}
inline constexpr Placement partial(Reduce reduce = Reduce::kSum) {
  return {Placement::kPartial, reduce, 0, 1};
}

// One per axis of the mesh, slowest axis first: an inner axis cuts what the outer ones left. Axes
// that the mesh does not have stay Replicate.
inline constexpr int kMaxMeshAxes = 3;
using Placements = std::array<Placement, kMaxMeshAxes>;

// Where the ranks along an axis are.
struct Coordinate {
  int rank = 0;
  int size = 1;
};
using Coordinates = std::array<Coordinate, kMaxMeshAxes>;

// Part [begin, begin + count) of n elements that a rank holds under Shard.
struct Part {
  int64_t begin;
  int64_t count;
};
Part part_of(int64_t n, Coordinate at);

// The sizes of this rank's tensor: of the axes [0, axes) alone, or of all.
Sizes local_sizes(Sizes global,
                  const Placements& placements,
                  const Coordinates& at,
                  int axes = kMaxMeshAxes);

// "S(1)", "S(0)/4" (4 blocks), "R", "P(sum)"; of several axes "[S(1), R]".
std::string to_string(const Placement& placement);
std::string to_string(const Placements& placements, int axes);

}  // namespace yoke::ptd
