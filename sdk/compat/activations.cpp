#include "sdk/compat/activations.hpp"

#include <algorithm>
#include <string_view>

namespace yoke::compat {
namespace {

// Returns the name of a block without what distinguishes the halves of a layer.
std::string_view layer_name(const YokeModelSummary& model, uint64_t block) {
  std::string_view name = view(model.blocks[block]->name);
  for (const std::string_view half : {".self_attn", ".mlp"}) {
    if (name.ends_with(half)) name.remove_suffix(half.size());
  }
  return name;
}

}  // namespace

std::vector<RecomputedUnit> layers_of(const YokeModelSummary& model, const BlockRange& blocks) {
  std::vector<RecomputedUnit> of_layers;
  const uint64_t end = std::min(blocks.end, model.num_blocks - 1);
  for (uint64_t b = std::max<uint64_t>(blocks.first, 1); b < end; ++b) {
    if (!of_layers.empty() && layer_name(model, b) == layer_name(model, b - 1)) {
      of_layers.back().last = b;
    } else {
      of_layers.push_back({b, b});
    }
  }
  return of_layers;
}

std::vector<RecomputedUnit> recomputed_units(const YokeModelSummary& model,
                                             Recompute recompute,
                                             int64_t layers,
                                             const BlockRange& stage) {
  std::vector<RecomputedUnit> of_layers = layers_of(model, stage);
  const auto count = static_cast<size_t>(layers);
  if (recompute == Recompute::kNone) return {};
  if (recompute == Recompute::kBlock) {
    of_layers.resize(std::min(of_layers.size(), count));
    return of_layers;
  }
  std::vector<RecomputedUnit> units;
  for (size_t i = 0; i < of_layers.size(); i += count)
    units.push_back(
        {of_layers[i].first, of_layers[std::min(i + count, of_layers.size()) - 1].last});
  return units;
}

int64_t activation_bytes(const YokeModelSummary& model,
                         const std::vector<RecomputedUnit>& units,
                         int64_t sequences) {
  int64_t kept = 0, largest = 0;  // always, and while a unit is computed again
  auto unit = units.begin();
  int64_t again = 0;
  for (uint64_t b = 0; b < model.num_blocks; ++b) {
    const YokeBlock& block = *model.blocks[b];
    if (!YOKE_HAS(YokeBlock, &block, carry_bytes) || block.activation_bytes < 0 ||
        block.carry_bytes < 0)
      return -1;
    const bool is_recomputed = unit != units.end() && b >= unit->first;
    if (is_recomputed) {
      again += block.activation_bytes;
      if (b < unit->last) {
        again += block.carry_bytes;
        continue;
      }
      largest = std::max(largest, again);
      again = 0;
      ++unit;
    } else {
      kept += block.activation_bytes;
    }
    kept += block.carry_bytes;
  }
  return (kept + largest) * sequences;
}

}  // namespace yoke::compat
