// The mesh: the ranks of a world arranged along the axes pp, dp_replicate, dp_shard, cp and tp. The
// last axis varies fastest, so tp peers have neighbouring ranks. Pure arithmetic.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "yoke/parallel_backend.h"

namespace yoke {

class Mesh {
 public:
  using Degrees = std::array<int32_t, YOKE_NUM_AXES>;

  // Throws Error(INVALID_ARGUMENT) unless every degree is at least 1 and their product fits 31
  // bits.
  explicit Mesh(const Degrees& degrees);

  int32_t size() const { return size_; }  // product of the degrees
  int32_t degree(int axis) const { return degrees_[axis]; }
  int32_t coordinate(int32_t rank, int axis) const;
  // Returns the ranks that differ from `rank` only in the axes of the mask, ascending, with `rank`
  // itself among them.
  std::vector<int32_t> peers(int32_t rank, uint32_t axes) const;
  int32_t data_ranks() const { return degrees_[YOKE_DP_REPLICATE] * degrees_[YOKE_DP_SHARD]; }
  int32_t data_rank(int32_t rank) const;  // coordinate on dp_replicate x dp_shard

 private:
  Degrees degrees_;
  int32_t size_;
};

// The bits of the axes that exist today. YOKE_ALL_AXES also sets bits for axes of later versions.
inline constexpr uint32_t kKnownAxes = (1u << YOKE_NUM_AXES) - 1;

// "dp_shard", "dp_replicate+dp_shard", or "world" for all axes
std::string axes_name(uint32_t axes);

}  // namespace yoke
