// Blocks are merged into groups by size, and a parameter's unit is then decided by the set of
// groups that use it: parameters with the same set, trainability and type of gather share a unit.
// Without tied or frozen parameters this gives one unit per group. A tied parameter has a different
// set and therefore its own unit, without any special code.
//
// Units are ordered by execution, because the next unit is gathered while the current one computes.
#include "sdk/mesh/schedule/units.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace yoke::mesh {
namespace {

// Returns the bytes of each block. A parameter counts in the first block that uses it.
std::vector<int64_t> bytes_of_blocks(const ModelSpec& model, int64_t item_size) {
  std::vector<int64_t> bytes(model.blocks.size(), 0);
  std::vector<bool> seen(model.params.size(), false);
  for (size_t b = 0; b < model.blocks.size(); ++b) {
    for (int p : model.blocks[b]) {
      if (!seen[p]) bytes[b] += model.params[p].numel * item_size;
      seen[p] = true;
    }
  }
  return bytes;
}

// Returns the group of every block; groups are numbered from 0 in order of execution.
std::vector<int> merge_blocks(const std::vector<int64_t>& bytes,
                              int64_t unit_bytes,
                              const std::vector<int>& stage_ends) {
  std::vector<int> group(bytes.size(), 0);
  int current = 0;
  int64_t held = 0;
  for (size_t b = 0; b < bytes.size(); ++b) {
    group[b] = current;
    held += bytes[b];
    const bool ends = std::binary_search(stage_ends.begin(), stage_ends.end(), static_cast<int>(b));
    if (held < unit_bytes && !ends) continue;
    ++current;
    held = 0;
  }
  // The last group did not reach unit_bytes.
  const bool open = !group.empty() && group.back() == current;
  if (open && current > 0 && held * 2 < unit_bytes) {
    std::replace(group.begin(), group.end(), current, current - 1);
  }
  return group;
}

}  // namespace

ModelSpec part_of_model(const ModelSpec& model, const Stages& stages, int rank) {
  ModelSpec part{model.params, {}};
  for (const int b : stages.blocks_of(rank)) part.blocks.push_back(model.blocks[b]);
  for (int s = 0; s < stages.count(); ++s) {
    if (stages.rank_of[s] == rank) continue;
    for (int b = stages.first_block[s]; b < stages.first_block[s + 1]; ++b) {
      for (const int p : model.blocks[b]) {
        part.params[p].partner = stages.rank_of[s];
        part.params[p].counted = rank < stages.rank_of[s];
      }
    }
  }
  return part;
}

UnitMap make_units(const ModelSpec& model,
                   int64_t unit_bytes,
                   int64_t item_size,
                   const std::vector<int>& stage_ends) {
  const std::vector<int> group =
      merge_blocks(bytes_of_blocks(model, item_size), unit_bytes, stage_ends);

  std::vector<std::set<int>> users(model.params.size());  // groups that use the parameter
  for (size_t b = 0; b < model.blocks.size(); ++b) {
    for (int p : model.blocks[b]) users[p].insert(group[b]);
  }

  UnitMap map;
  // The groups that use the parameter, whether it is trainable, whether it is gathered in fp8, and
  // itself if it is shared.
  std::map<std::tuple<std::set<int>, bool, bool, int>, int> unit_of_key;
  std::vector<int> unit_of_param(model.params.size(), -1);
  for (const std::vector<int>& block : model.blocks) {
    std::set<int> needed;
    for (int p : block) {
      const bool trainable = model.params[p].trainable, fp8 = model.params[p].fp8;
      const int alone = model.params[p].partner != OwnStage::kNoRank ? p : -1;
      const auto [at, is_new] = unit_of_key.try_emplace({users[p], trainable, fp8, alone},
                                                        static_cast<int>(map.units.size()));
      if (is_new) map.units.push_back({{}, trainable, fp8});
      if (unit_of_param[p] < 0) map.units[at->second].params.push_back(p);
      unit_of_param[p] = at->second;
      needed.insert(at->second);
    }
    map.of_block.emplace_back(needed.begin(), needed.end());
  }
  // Parameters with the same flags become neighbours in the buffer, so spans are long: the
  // optimizer's kernel is called less often, and tp-replicated elements are contiguous.
  for (Unit& unit : map.units) {
    std::stable_sort(unit.params.begin(), unit.params.end(), [&](int a, int b) {
      const ParamSpec &x = model.params[a], &y = model.params[b];
      return std::pair(!x.decay, x.tp_replicated) < std::pair(!y.decay, y.tp_replicated);
    });
  }
  return map;
}

}  // namespace yoke::mesh
