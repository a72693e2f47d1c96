#include "core/comm/mesh.hpp"

#include <limits>

#include "yoke/error.hpp"
#include "yoke/plan.h"
#include "yoke/text.hpp"

namespace yoke {

Mesh::Mesh(const Degrees& degrees) : degrees_(degrees), size_(1) {
  int64_t size = 1;
  for (int axis = 0; axis < YOKE_NUM_AXES; ++axis) {
    if (degrees[axis] < 1) {
      throw Error(YOKE_INVALID_ARGUMENT,
                  concat("the degree of axis ",
                         yoke_axis_name(axis),
                         " is ",
                         degrees[axis],
                         "; it must be at least 1"));
    }
    size *= degrees[axis];
    if (size > std::numeric_limits<int32_t>::max()) {
      throw Error(YOKE_INVALID_ARGUMENT, "the degrees multiply to more than 2^31 - 1 ranks");
    }
  }
  size_ = static_cast<int32_t>(size);
}

int32_t Mesh::coordinate(int32_t rank, int axis) const {
  for (int faster = YOKE_NUM_AXES - 1; faster > axis; --faster) rank /= degrees_[faster];
  return rank % degrees_[axis];
}

std::vector<int32_t> Mesh::peers(int32_t rank, uint32_t axes) const {
  // A rank is a mixed-radix number with one digit per axis: its coordinate. `ranks` holds the
  // leading digits of all peers. For an axis in `axes`, every coordinate is appended; for any other
  // axis, only the coordinate of `rank`. Going from the slowest axis to the fastest keeps the list
  // ascending.
  std::vector<int32_t> ranks{0};
  for (int axis = 0; axis < YOKE_NUM_AXES; ++axis) {
    const bool chosen = (axes & YOKE_AXIS_BIT(axis)) != 0;
    const int32_t first = chosen ? 0 : coordinate(rank, axis);
    const int32_t last = chosen ? degrees_[axis] - 1 : first;
    std::vector<int32_t> next;
    next.reserve(ranks.size() * (last - first + 1));
    for (const int32_t prefix : ranks) {
      for (int32_t c = first; c <= last; ++c) next.push_back(prefix * degrees_[axis] + c);
    }
    ranks = std::move(next);
  }
  return ranks;
}

int32_t Mesh::data_rank(int32_t rank) const {
  return coordinate(rank, YOKE_DP_REPLICATE) * degrees_[YOKE_DP_SHARD] +
         coordinate(rank, YOKE_DP_SHARD);
}

std::string axes_name(uint32_t axes) {
  if ((axes & kKnownAxes) == kKnownAxes) return "world";
  std::string name;
  for (int axis = 0; axis < YOKE_NUM_AXES; ++axis) {
    if ((axes & YOKE_AXIS_BIT(axis)) == 0) continue;
    if (!name.empty()) name += "+";
    name += yoke_axis_name(axis);
  }
  return name.empty() ? "self" : name;
}

}  // namespace yoke
