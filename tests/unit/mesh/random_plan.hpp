// Makes random models and steps for property tests, and prints what the checker says about them.
// The same seed gives the same step.
#pragma once

#include <random>
#include <string>

#include "sdk/mesh/schedule/checker.hpp"
#include "sdk/mesh/schedule/flat_layout.hpp"
#include "sdk/mesh/schedule/schedule.hpp"
#include "sdk/mesh/schedule/units.hpp"

namespace yoke::mesh::testing {

inline constexpr int64_t kItemSize = 4;

class Dice {
 public:
  explicit Dice(unsigned seed) : engine_(seed) {}
  int roll(int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine_); }
  bool one_in(int n) { return roll(1, n) == 1; }

 private:
  std::mt19937 engine_;
};

// Returns a model of up to 8 blocks. Some have no parameters, some share one with another block,
// some parameters are frozen, and some are gathered in fp8.
inline ModelSpec random_model(Dice& dice) {
  ModelSpec model;
  model.blocks.resize(dice.roll(1, 8));
  for (std::vector<int>& block : model.blocks) {
    const int count = dice.roll(0, 4);
    for (int i = 0; i < count; ++i) {
      if (!model.params.empty() && dice.one_in(6)) {
        const int tied = dice.roll(0, static_cast<int>(model.params.size()) - 1);
        if (std::find(block.begin(), block.end(), tied) == block.end()) block.push_back(tied);
        continue;
      }
      block.push_back(static_cast<int>(model.params.size()));
      model.params.push_back({dice.roll(1, 400), !dice.one_in(5), !dice.one_in(3)});
      model.params.back().fp8 = dice.one_in(3);
    }
  }
  return model;
}

inline StepSpec step_spec(const ModelSpec& model, const UnitMap& map, int shards) {
  StepSpec spec;
  for (const Unit& unit : map.units) {
    const int64_t numel = FlatLayout(model, unit, shards, kItemSize).numel();
    const int64_t bytes = numel * kItemSize;
    spec.units.push_back({unit.trainable, bytes, unit.trainable ? bytes : 0});
    if (!unit.fp8 || shards == 1) continue;
    spec.units.back().fp8_bytes = numel;
    spec.scale_bytes += static_cast<int64_t>(unit.params.size()) * 4;
  }
  spec.blocks = map.of_block;
  spec.shards = shards;
  return spec;
}

inline StepSpec random_step(Dice& dice) {
  const ModelSpec model = random_model(dice);
  const UnitMap map = make_units(model, dice.roll(1, 3000), kItemSize);
  StepSpec spec = step_spec(model, map, dice.roll(1, 3));
  spec.replicas = dice.roll(1, 2);
  spec.micros = dice.roll(1, 3);
  spec.reshard_after_forward = !dice.one_in(3);
  spec.recompute = static_cast<Recompute>(dice.roll(0, 2));
  spec.accumulate = dice.one_in(2) ? Accumulate::kSharded : Accumulate::kUnsharded;
  spec.forward_only = dice.one_in(5);
  spec.reduce_partial_grads = dice.one_in(3);
  // Adds a trainable unit that no block of this rank uses, as can happen on a pipeline stage.
  if (dice.one_in(4)) {
    const int64_t bytes = int64_t{kItemSize} * 16 * spec.shards;
    spec.units.push_back({true, bytes, bytes});
  }
  return spec;
}

// Returns one line for each fault.
inline std::string text(const std::vector<ScheduleFault>& faults) {
  std::string all;
  for (const ScheduleFault& f : faults) {
    all += "rank " + std::to_string(f.rank) + " action " + std::to_string(f.action) + ": " +
           f.text + "\n";
  }
  return all;
}

}  // namespace yoke::mesh::testing
