#include "plugins/ptd/state/shard_state.hpp"

#include <ATen/ATen.h>

#include <algorithm>

namespace yoke::ptd {
namespace {

void append(std::vector<FlatSpan>& spans, FlatSpan next) {
  if (next.count == 0) return;
  const bool as_before = !spans.empty() && spans.back().decay == next.decay &&
                         spans.back().tp_replicated == next.tp_replicated &&
                         spans.back().counted == next.counted;
  if (as_before) {
    spans.back().count += next.count;
  } else {
    spans.push_back(next);
  }
}

// Appends those parts of a unit's spans that lie in the given shard, which begins at element `at`
// of the flat tensors. The padding at the end of the unit's buffer is added to the last span, so
// that spans have no gaps.
void append_spans(std::vector<FlatSpan>& spans, const FlatLayout& layout, int shard, int64_t at) {
  const int64_t first = shard * layout.shard_numel(), last = first + layout.shard_numel();
  int64_t done = first;
  for (const FlatSpan& s : layout.spans()) {
    const bool to_the_end = &s == &layout.spans().back();
    const int64_t end = std::clamp(to_the_end ? last : s.begin + s.count, done, last);
    append(spans, {at + done - first, end - done, s.decay, s.tp_replicated, s.counted});
    done = end;
  }
}

// Returns how many elements of a shard are tp-replicated.
int64_t tp_replicated_in(const std::vector<ShardState::UnitShard>& units, int shard) {
  std::vector<FlatSpan> spans;
  for (const ShardState::UnitShard& unit : units) {
    if (unit.trainable) append_spans(spans, unit.layout, shard, unit.begin);
  }
  int64_t sum = 0;
  for (const FlatSpan& span : spans) sum += span.tp_replicated ? span.count : 0;
  return sum;
}

constexpr int64_t kInitElements = 1 << 20;  // fp32 elements that are requested at a time

// Fills dst with elements [begin, begin + dst.numel()) of a parameter.
void init_range(const YokeModel& model, int64_t param, int64_t begin, const at::Tensor& dst) {
  at::Tensor values = at::empty({std::min(dst.numel(), kInitElements)}, at::kFloat);
  for (int64_t done = 0; done < dst.numel(); done += values.numel()) {
    const int64_t n = std::min(values.numel(), dst.numel() - done);
    call([&](YokeError* err) {
      return model.init_param(model.ctx, param, begin + done, n, values.data_ptr<float>(), err);
    });
    dst.narrow(0, done, n).copy_(values.narrow(0, 0, n));
  }
}

void init_piece(const YokeModel& model,
                int64_t param,
                const ParamSpan& span,
                const at::Tensor& dst) {
  for (int64_t done = 0; done < span.count; done += span.run) {
    const int64_t n = std::min(span.run, span.count - done);
    init_range(model, param, span.begin + done / span.run * span.stride, dst.narrow(0, done, n));
  }
}

}  // namespace

ShardState::ShardState(const ModelSpec& model,
                       const UnitMap& map,
                       int shards,
                       int which,
                       Dtypes element_types,
                       at::Device device)
    : dtypes(element_types), shard(which) {
  // The compute type is the narrowest: an offset that is aligned for it is aligned for all others.
  const auto item_size = static_cast<int64_t>(c10::elementSize(dtypes.compute));
  int64_t trainable = 0, constant = 0;
  for (const Unit& unit : map.units) {
    int64_t& end = unit.trainable ? trainable : constant;
    units.push_back({FlatLayout(model, unit, shards, item_size), unit.trainable, end});
    const FlatLayout& layout = units.back().layout;
    if (unit.trainable) append_spans(spans, layout, which, end);
    end += layout.shard_numel();
  }
  // This is the maximum over all shards, so that every rank of the world issues collectives of the
  // same size.
  for (int s = 0; s < shards; ++s)
    most_tp_replicated = std::max(most_tp_replicated, tp_replicated_in(units, s));
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

at::Tensor ShardState::copy_shard(size_t unit) const {
  const UnitShard& u = units[unit];
  if (!u.trainable || !copies.defined()) return {};
  return copies.narrow(0, u.begin, u.layout.shard_numel());
}

std::vector<at::Tensor> ShardState::tp_replicated_parts(const at::Tensor& flat) const {
  std::vector<at::Tensor> parts;
  for (const FlatSpan& span : spans) {
    if (span.tp_replicated) parts.push_back(flat.narrow(0, span.begin, span.count));
  }
  return parts;
}

void init_params(const ShardState& state,
                 const std::vector<ParamCut>& cuts,
                 const YokeModel& model) {
  for (size_t u = 0; u < state.units.size(); ++u) {
    const at::Tensor shard = state.param_shard(u);
    for (const FlatLayout::Slot& slot : state.units[u].layout.slots()) {
      const ShardPiece piece = state.units[u].layout.piece(slot, state.shard);
      for (const ParamSpan& span : cuts[slot.param].spans(piece.begin, piece.count)) {
        const int64_t at = piece.offset + span.local - piece.begin;
        init_piece(model, slot.param, span, shard.narrow(0, at, span.count));
      }
    }
  }
}

}  // namespace yoke::ptd
