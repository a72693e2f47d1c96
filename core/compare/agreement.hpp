// Determines how far two runs agree. Does not need LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/compare/run_facts.hpp"
#include "core/compare/states.hpp"

namespace yoke::compare {

// The levels of agreement. Larger values are closer.
//
//   L0        the same bits at every step
//   L1        equal up to the order of summation
//   L2        equal up to the rounding of a half-precision dtype, or of products in fp8
//   differs   none of these
enum class Level { kDiffers, kL2, kL1, kL0 };
// Returns "differs", "L2", "L1" or "L0".
const char* level_name(Level level);
// Returns the level with the name "L0", "L1" or "L2"; nothing for any other text.
std::optional<Level> level_by_name(const std::string& name);

// Bounds are the largest differences that a level allows. All but those of `params` are relative.
struct Bounds {
  double loss = 0;       // loss of steps 1 to 20
  double late_loss = 0;  // loss of steps 21 to 200; later steps have a bound 100 times as large
  double grad_norm = 0;  // gradient norm of steps 1 to 20; later steps are unbounded
  double gradient = 0;   // gradient of a tensor at step 1, |b - a| / |a|
  Tolerance params;      // parameters at steps 1 to 10, except for one element in 10,000
};
// Returns the bounds of a level. dtype is the coarser dtype of the two runs; blocks is the depth of
// the model, with which rounding errors grow.
Bounds bounds_of(Level level, const std::string& dtype, int64_t blocks);

// Returns the level that two runs must reach: L2 if one of them computes in half precision, or its
// products in fp8, else L1.
Level required_level(const RunFacts& a, const RunFacts& b);

// Rounding compares two runs in fp32 with the same run in fp64.
struct Rounding {
  // The largest relative differences of the losses from those of the run in fp64.
  double reference = 0, run = 0;
  bool explains = false;  // true if rounding explains the difference between the two runs
};

// Agreement is the result of a comparison of two runs.
struct Agreement {
  Level level = Level::kDiffers;  // closest level whose bounds hold
  // The largest differences over all steps, and where they are. NaN = unknown.
  double loss = 0, grad_norm = 0, gradient = 0, param = 0;
  int64_t loss_step = 0, norm_step = 0;
  std::string gradient_tensor, param_tensor;
  int64_t first_bad = -1;            // first step outside of the bounds of `required`; -1 = none
  std::string exceeded;              // first value outside of its bound, as text; "" = none
  std::optional<Rounding> rounding;  // set if a run in fp64 was needed and made
};

// Compares two runs step by step, and their states after the steps at which both have saved one.
// `required` selects the bounds that first_bad refers to. Throws Error if a state cannot be read.
Agreement compare_runs(const RunFacts& reference, const RunFacts& run, Level required);

// How many times as far from the run in fp64 as the reference a run may be. The error of a sum of
// 1024 terms is about 32 times as large if they are added one after the other as it is if they are
// added pairwise, while a product in TF32 is off by 8192 times the rounding of fp32.
inline constexpr double kRoundingFactor = 32;

// Returns true if a run in fp64 can show whether a difference between two runs is only rounding:
// both compute in fp32, start from the same bits and do not reach L1, and no gradient of step 1
// differs by more than 1 %.
bool needs_exact_run(const RunFacts& reference, const RunFacts& run, const Agreement& agreement);

// Decides whether rounding explains why two runs differ. `exact` is the reference in fp64. Rounding
// explains a difference if every value that has a bound is at most kRoundingFactor times as far
// from the exact one as that of the reference, or within the bound of L1. Then the level of
// `agreement` becomes L1 and first_bad becomes -1. Throws Error if a state cannot be read.
void judge_rounding(const RunFacts& exact,
                    const RunFacts& reference,
                    const RunFacts& run,
                    Agreement& agreement);

}  // namespace yoke::compare
