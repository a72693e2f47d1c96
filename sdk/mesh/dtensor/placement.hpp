// Placements: how a tensor is distributed over the ranks of a mesh, one placement per axis. Pure
// arithmetic over sizes.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <string>
#include <vector>

namespace yoke::mesh {

using Sizes = std::vector<int64_t>;

enum class Reduce : uint8_t { kSum, kAvg, kMax };

// What each rank along one axis holds of a tensor:
//   Replicate  the whole tensor
//   Shard      a part of `dim`, in rank order, cut as at::chunk does: parts of ceil(n / size), the
//              last ones smaller or empty. With blocks > 1 the dim consists of equal blocks, and
//              each block is cut this way: Shard(1) of [B, S] becomes Shard(0) in B blocks when
//              the tensor is viewed as [B * S].
//   Partial    a tensor of the global sizes; the value is the sum, mean or maximum over the ranks
struct Placement {
  enum Kind : uint8_t { kReplicate, kShard, kPartial };

  Kind kind = kReplicate;
  Reduce reduce = Reduce::kSum;  // reduction of a kPartial
  int16_t dim = 0;               // dimension of a kShard
  int32_t blocks = 1;            // number of blocks of a kShard

  bool operator==(const Placement&) const = default;
  bool is_replicate() const { return kind == kReplicate; }
  bool is_shard() const { return kind == kShard; }
  bool is_shard(int64_t d) const { return kind == kShard && dim == d; }
  bool is_partial() const { return kind == kPartial; }
  // Returns all fields as one number, for keys and for data that autograd saves.
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

// There is one placement per axis of the mesh, slowest axis first: an inner axis cuts what the
// outer axes left. Axes that the mesh does not have are Replicate.
inline constexpr int kMaxMeshAxes = 3;
using Placements = std::array<Placement, kMaxMeshAxes>;

// Convert placements to integers, which a node of autograd can save, and back.
std::vector<int64_t> bits_of(const Placements& placements);
Placements from_bits(const std::vector<int64_t>& bits);

// This rank's index along an axis.
struct Coordinate {
  int rank = 0;
  int size = 1;
};
using Coordinates = std::array<Coordinate, kMaxMeshAxes>;

// The elements [begin, begin + count) of n that a rank holds under Shard.
struct Part {
  int64_t begin;
  int64_t count;
};
Part part_of(int64_t n, Coordinate at);

// Returns the sizes of this rank's tensor after the axes [0, axes) have cut it.
Sizes local_sizes(Sizes global,
                  const Placements& placements,
                  const Coordinates& at,
                  int axes = kMaxMeshAxes);

// Returns "S(1)", "S(0)/4" for 4 blocks, "R" or "P(sum)"; "[S(1), R]" for several axes.
std::string to_string(const Placement& placement);
std::string to_string(const Placements& placements, int axes);

}  // namespace yoke::mesh
