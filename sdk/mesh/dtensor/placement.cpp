#include "sdk/mesh/dtensor/placement.hpp"

#include <algorithm>

#include "yoke/text.hpp"

namespace yoke::mesh {

Part part_of(int64_t n, Coordinate at) {
  const int64_t chunk = (n + at.size - 1) / at.size;
  const int64_t begin = std::min(n, at.rank * chunk);
  return {begin, std::min(n, begin + chunk) - begin};
}

Sizes local_sizes(Sizes sizes, const Placements& placements, const Coordinates& at, int axes) {
  for (int a = 0; a < axes; ++a) {
    const Placement& p = placements[a];
    if (!p.is_shard()) continue;
    int64_t& n = sizes[p.dim];
    n = p.blocks * part_of(n / p.blocks, at[a]).count;
  }
  return sizes;
}

std::vector<int64_t> bits_of(const Placements& placements) {
  std::vector<int64_t> bits;
  for (const Placement& placement : placements) bits.push_back(placement.bits());
  return bits;
}
Placements from_bits(const std::vector<int64_t>& bits) {
  Placements placements;
  for (int a = 0; a < kMaxMeshAxes; ++a) placements[a] = std::bit_cast<Placement>(bits[a]);
  return placements;
}

std::string to_string(const Placement& p) {
  switch (p.kind) {
    case Placement::kReplicate:
      return "R";
    case Placement::kShard:
      return p.blocks == 1 ? concat("S(", p.dim, ")") : concat("S(", p.dim, ")/", p.blocks);
    case Placement::kPartial:
      break;
  }
  constexpr const char* kNames[] = {"P(sum)", "P(avg)", "P(max)"};
  return kNames[static_cast<int>(p.reduce)];
}

std::string to_string(const Placements& placements, int axes) {
  if (axes == 1) return to_string(placements[0]);
  std::string text;
  for (int a = 0; a < axes; ++a) text += concat(a == 0 ? "[" : ", ", to_string(placements[a]));
  return text + "]";
}

}  // namespace yoke::mesh
