#include "sdk/compat/flat_layout.hpp"

#include <algorithm>
#include <utility>

#include "yoke/error.hpp"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke::compat {
namespace {

constexpr std::string_view kLayers = "model.layers.";

// A trainable parameter with its name in the other program and its place among those of its layer.
struct Named {
  std::string name;
  std::string_view layer;  // number of the layer; "" = in no layer
  size_t place = 0;        // within the layer
  int64_t param = 0;
};

Named named(const YokeModelSummary& model, const Names& names, int64_t param) {
  const std::string_view name = view(model.params[param]->name);
  for (const Names::Name& n : names.outside) {
    if (n.here == name) return {std::string(n.there), "", 0, param};
  }
  if (name.starts_with(kLayers)) {
    const std::string_view rest = name.substr(kLayers.size());
    const size_t dot = std::min(rest.find('.'), rest.size() - 1);
    const std::string_view layer = rest.substr(0, dot);
    for (size_t i = 0; i < names.of_layer.size(); ++i) {
      const Names::Name& n = names.of_layer[i];
      if (n.here != rest.substr(dot + 1)) continue;
      return {concat(names.before_layer, layer, names.behind_layer, n.there), layer, i, param};
    }
  }
  return {std::string(name), "", 0, param};
}

}  // namespace

int64_t elements(const YokeModelSummary& model, int64_t param) {
  return numel(model.params[param]->shape, model.params[param]->ndim);
}

std::vector<Slot> slots_of(const YokeModelSummary& model, const Names& names) {
  std::vector<Named> all;
  for (uint64_t p = 0; p < model.num_params; ++p) {
    if (model.params[p]->trainable != 0)
      all.push_back(named(model, names, static_cast<int64_t>(p)));
  }
  // Sorts the parameters of each layer.
  for (auto begin = all.begin(); begin != all.end();) {
    const auto end = std::find_if(
        begin, all.end(), [&](const Named& n) { return n.layer != begin->layer || n.layer == ""; });
    std::sort(begin, end, [](const Named& a, const Named& b) { return a.place < b.place; });
    begin = end == begin ? begin + 1 : end;
  }
  std::vector<Slot> slots;
  for (const Named& n : all) {
    if (slots.empty() || slots.back().name != n.name) slots.push_back({n.name, {}, 0, 0, 0});
    slots.back().params.push_back(n.param);
  }
  return slots;
}

FlatLayout::FlatLayout(const YokeModelSummary& model, std::vector<Slot> slots, int64_t size)
    : model_(model),
      slots_(std::move(slots)),
      offsets_(model.num_params, -1),
      bucket_of_(model.num_params, -1),
      size_(size) {
  for (const Slot& slot : slots_) {
    int64_t offset = slot.begin;
    for (const int64_t p : slot.params) {
      offsets_[p] = offset;
      bucket_of_[p] = slot.bucket;
      offset += elements(model, p);
    }
  }
}

std::vector<Piece> FlatLayout::pieces(const Range& range) const {
  std::vector<Piece> pieces;
  for (const Slot& slot : slots_) {
    for (const int64_t p : slot.params) {
      const int64_t first = std::max(range.begin, offsets_[p]);
      const int64_t last = std::min(range.begin + range.count, offsets_[p] + elements(model_, p));
      if (first < last) pieces.push_back({p, first - offsets_[p], last - first, first});
    }
  }
  return pieces;
}

}  // namespace yoke::compat
