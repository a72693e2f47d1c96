#include "plugins/ptd/shard_state.hpp"

#include <ATen/ATen.h>

#include <algorithm>

namespace yoke::ptd {
namespace {

void append(std::vector<ShardState::Range>& ranges, ShardState::Range next) {
  if (next.count == 0) return;
  if (!ranges.empty() && ranges.back().decay == next.decay) {
    ranges.back().count += next.count;
  } else {
    ranges.push_back(next);
  }
}

constexpr int64_t kInitElements = 1 << 20;  // fp32 elements in flight while initial values are made

void init_piece(const YokeModel& model,
                int64_t param,
                const ShardPiece& piece,
                const at::Tensor& shard) {
  at::Tensor values = at::empty({std::min(piece.count, kInitElements)}, at::kFloat);
  for (int64_t done = 0; done < piece.count; done += values.numel()) {
    const int64_t n = std::min(values.numel(), piece.count - done);
    YokeError err = make_error();
    check(model.init_param(model.ctx, param, piece.begin + done, n, values.data_ptr<float>(), &err),
          err);
    shard.narrow(0, piece.offset + done, n).copy_(values.narrow(0, 0, n));
  }
}

}  // namespace

ShardState::ShardState(const ModelSpec& model,
                       const UnitMap& map,
                       int shards,
                       int which,
                       Dtypes dtypes,
                       at::Device device)
    : shard(which) {
  // What is aligned in the narrowest type is aligned in all.
  const auto item_size = static_cast<int64_t>(c10::elementSize(dtypes.compute));
  int64_t trainable = 0, constant = 0;
  for (const Unit& unit : map.units) {
    int64_t& end = unit.trainable ? trainable : constant;
    units.push_back({FlatLayout(model, unit, shards, item_size), unit.trainable, end});
    const FlatLayout& layout = units.back().layout;
    if (unit.trainable) {
      const int64_t decayed = std::clamp<int64_t>(
          layout.decay_end() - which * layout.shard_numel(), 0, layout.shard_numel());
      append(ranges, {end, decayed, true});
      append(ranges, {end + decayed, layout.shard_numel() - decayed, false});
    }
    end += layout.shard_numel();
  }
  const at::TensorOptions on_device(device);
  params = at::zeros({trainable}, on_device.dtype(dtypes.master));
  grads = at::zeros({trainable}, on_device.dtype(dtypes.reduce));
  frozen = at::zeros({constant}, on_device.dtype(dtypes.master));
}

at::Tensor ShardState::param_shard(size_t unit) const {
  const UnitShard& u = units[unit];
  return (u.trainable ? params : frozen).narrow(0, u.begin, u.layout.shard_numel());
}

at::Tensor ShardState::grad_shard(size_t unit) const {
  const UnitShard& u = units[unit];
  return u.trainable ? grads.narrow(0, u.begin, u.layout.shard_numel()) : at::Tensor();
}

void init_params(const ShardState& state, const YokeModel& model) {
  for (size_t u = 0; u < state.units.size(); ++u) {
    const at::Tensor shard = state.param_shard(u);
    for (const FlatLayout::Slot& slot : state.units[u].layout.slots()) {
      init_piece(model, slot.param, state.units[u].layout.piece(slot, state.shard), shard);
    }
  }
}

}  // namespace yoke::ptd
