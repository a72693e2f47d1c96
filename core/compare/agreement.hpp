// How far two runs agree. Does not need LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/compare/run_facts.hpp"
#include "core/compare/states.hpp"

namespace yoke::compare {

// L0: the same bits at every step. L1: differences of the order of summation only. L2: those of a
// half-precision dtype. Higher is closer.
enum class Level { kDiffers, kL2, kL1, kL0 };
const char* level_name(Level level);                          // "differs", "L2" ...
std::optional<Level> level_by_name(const std::string& name);  // "L0", "L1", "L2"

// What a level allows for runs of a dtype. Relative, but for params.
struct Bounds {
  double loss = 0;       // at steps 1 to 20
  double late_loss = 0;  // at steps 21 to 200; a hundred times that afterwards
  double grad_norm = 0;  // at steps 1 to 20: later, correct runs drift apart
  double gradient = 0;   // of a tensor at step 1, |b - a| / |a|
  Tolerance params;      // at steps 1 to 10, of all but one element in 10,000
};
// dtype: the coarser one of the two runs. blocks: of the model, which rounding errors add up over.
Bounds bounds_of(Level level, const std::string& dtype, int64_t blocks);

// The level that runs of these dtypes must reach: L1, or L2 if one of them computes in half
// precision.
Level required_level(const RunFacts& a, const RunFacts& b);

struct Agreement {
  Level level = Level::kDiffers;  // the highest one that holds
  // Largest differences, and the steps where they are. NaN = not known.
  double loss = 0, grad_norm = 0, gradient = 0, param = 0;
  int64_t loss_step = 0, norm_step = 0;
  std::string gradient_tensor, param_tensor;
  int64_t first_bad = -1;  // first step outside of the bounds of `required`; -1 = none
};

// Compares step by step; the state too where both runs have saved it.
Agreement compare_runs(const RunFacts& reference, const RunFacts& run, Level required);

}  // namespace yoke::compare
