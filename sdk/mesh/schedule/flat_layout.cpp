#include "sdk/mesh/schedule/flat_layout.hpp"

#include <algorithm>

namespace yoke::mesh {
namespace {

int64_t round_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

}  // namespace

FlatLayout::FlatLayout(const ModelSpec& model, const Unit& unit, int shards, int64_t item_size)
    : shards_(shards) {
  const int64_t align = kAlignBytes / (unit.fp8 ? 1 : item_size);
  int64_t end = 0;
  for (int p : unit.params) {
    const ParamSpec& param = model.params[p];
    slots_.push_back({p, end, param.numel});
    const int64_t begin = end;
    end = round_up(end + param.numel, align);
    const bool as_before = !spans_.empty() && spans_.back().decay == param.decay &&
                           spans_.back().tp_replicated == param.tp_replicated &&
                           spans_.back().counted == param.counted;
    if (!as_before) spans_.push_back({begin, 0, param.decay, param.tp_replicated, param.counted});
    spans_.back().count = end - spans_.back().begin;
  }
  // Rounding to align * shards makes every shard begin at a cache line.
  shard_numel_ = round_up(end, align * shards) / shards;
}

ShardPiece FlatLayout::piece(const Slot& slot, int shard) const {
  const int64_t shard_begin = shard * shard_numel_;
  const int64_t begin = std::max(slot.offset, shard_begin);
  const int64_t end = std::min(slot.offset + slot.numel, shard_begin + shard_numel_);
  if (begin >= end) return {};
  return {begin - slot.offset, end - begin, begin - shard_begin};
}

}  // namespace yoke::mesh
