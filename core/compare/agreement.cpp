// Measures how much two runs differ, and decides whether correct runs may differ so much.
//
// Two backends add the same numbers in a different order, so their losses differ by rounding, and
// the difference grows with the steps. The bounds follow this: they are tight for the first 20
// steps, where a fault is visible and rounding has not grown yet, and wide afterwards. The first
// gradient and the first parameters are compared too, because a small fault of one tensor hardly
// changes the loss.
//
// The level of a pair is the closest one whose bounds hold. Equality of bits is checked with the
// hashes of the parameters, which the runs have recorded.

#include "core/compare/agreement.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace yoke::compare {
namespace {

constexpr int64_t kEarly = 20,       // last step with the tight bounds
    kLate = 200;                     // last step with the wide bound of the loss
constexpr int64_t kParamSteps = 10;  // last step whose parameters have bounds
constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

double relative(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  return std::abs(b - a) / std::abs(a);
}

bool same_bits(const StepFacts& a, const StepFacts& b) {
  const bool norms =
      a.grad_norm == b.grad_norm || std::isnan(a.grad_norm) || std::isnan(b.grad_norm);
  return a.loss == b.loss && norms && a.hashes == b.hashes;
}

double loss_bound(const Bounds& bounds, int64_t step) {
  if (step <= kEarly) return bounds.loss;
  return step <= kLate ? bounds.late_loss : 100 * bounds.late_loss;
}

// Pair holds the differences between two runs that are compared with bounds, computed once.
struct Pair {
  const RunFacts &a, &b;
  std::vector<Difference> gradients;                                // gradients of step 1
  std::vector<std::pair<int64_t, std::vector<Difference>>> params;  // parameters after each step
  size_t steps;                                                     // steps that both runs have

  Pair(const RunFacts& reference, const RunFacts& run, const Tolerance& tolerance)
      : a(reference), b(run), steps(std::min(a.steps.size(), b.steps.size())) {
    for (int64_t step = 1; step <= kParamSteps; ++step) {
      if (!has_state(a, step) || !has_state(b, step)) continue;
      params.emplace_back(step, compare_params(a, b, step, tolerance));
      if (step == 1) gradients = compare_gradients(a, b, step);
    }
  }
};

bool exact(const Pair& pair) {
  if (pair.a.external() || pair.b.external() || pair.a.start.hashes != pair.b.start.hashes)
    return false;
  for (size_t i = 0; i < pair.steps; ++i) {
    if (!same_bits(pair.a.steps[i], pair.b.steps[i])) return false;
  }
  return true;
}

// Returns true if more than one element in 10,000 is outside of the tolerance. AdamW divides by the
// root of a gradient's mean square, which magnifies rounding where the addends of a gradient
// cancel. So a few elements of a correct run may be outside.
bool too_many_outside(const std::vector<Difference>& params) {
  constexpr int64_t kOneIn = 10'000;
  int64_t elements = 0, outside = 0;
  for (const Difference& d : params) {
    elements += d.elements;
    outside += d.outside;
  }
  return outside > elements / kOneIn;
}

// Returns the first step outside of the bounds, or -1. Step 0 means the initial parameters.
int64_t first_bad(const Pair& pair, const Bounds& bounds) {
  const bool known = !pair.a.start.hashes.empty() && !pair.b.start.hashes.empty();
  if (pair.b.start.violation || (known && pair.a.start.hashes != pair.b.start.hashes)) return 0;
  std::vector<int64_t> bad;
  for (const Difference& d : pair.gradients) {
    if (!(d.relative <= bounds.gradient)) bad.push_back(1);
  }
  for (const auto& [step, params] : pair.params) {
    if (too_many_outside(params)) bad.push_back(step);
  }
  for (size_t i = 0; i < pair.steps; ++i) {
    const StepFacts &a = pair.a.steps[i], &b = pair.b.steps[i];
    const bool norms = a.step <= kEarly && !std::isnan(a.grad_norm) && !std::isnan(b.grad_norm);
    const bool fine = relative(a.loss, b.loss) <= loss_bound(bounds, a.step) &&
                      (!norms || relative(a.grad_norm, b.grad_norm) <= bounds.grad_norm);
    if (!fine || b.violation) bad.push_back(a.step);
  }
  return bad.empty() ? -1 : *std::min_element(bad.begin(), bad.end());
}

// Fills in the largest differences.
void measure(const Pair& pair, Agreement& v) {
  for (size_t i = 0; i < pair.steps; ++i) {
    const StepFacts &a = pair.a.steps[i], &b = pair.b.steps[i];
    const double loss = relative(a.loss, b.loss), norm = relative(a.grad_norm, b.grad_norm);
    if (!(loss <= v.loss)) {  // also true if the difference is NaN
      v.loss = loss;
      v.loss_step = a.step;
    }
    if (norm > v.grad_norm) {
      v.grad_norm = norm;
      v.norm_step = a.step;
    }
  }
  const bool norms = std::any_of(pair.b.steps.begin(), pair.b.steps.end(), [](const StepFacts& s) {
    return !std::isnan(s.grad_norm);
  });
  if (!norms) v.grad_norm = kUnknown;
  v.gradient = pair.gradients.empty() ? kUnknown : 0;
  for (const Difference& d : pair.gradients) {
    if (d.relative <= v.gradient) continue;
    v.gradient = d.relative;
    v.gradient_tensor = d.tensor;
  }
  v.param = pair.params.empty() ? kUnknown : 0;
  for (const auto& [step, params] : pair.params) {
    for (const Difference& d : params) {
      if (d.largest <= v.param) continue;
      v.param = d.largest;
      v.param_tensor = d.tensor;
    }
  }
}

int64_t first_other_bits(const RunFacts& a, const RunFacts& b) {
  if (a.start.hashes != b.start.hashes) return 0;
  for (size_t i = 0; i < std::min(a.steps.size(), b.steps.size()); ++i) {
    if (!same_bits(a.steps[i], b.steps[i])) return a.steps[i].step;
  }
  return -1;
}

std::string coarser(const std::string& a, const std::string& b) {
  for (const char* dtype : {"bf16", "fp16", "fp32"}) {
    if (a == dtype || b == dtype) return dtype;
  }
  return a.empty() ? b : a;
}

// Returns the coarser dtype of two runs. An external run does not report its dtype; then that of
// the other run is used.
std::string dtype_of(const RunFacts& a, const RunFacts& b) {
  return coarser(a.dtype.empty() ? b.dtype : a.dtype, b.dtype.empty() ? a.dtype : b.dtype);
}

}  // namespace

const char* level_name(Level level) {
  constexpr const char* kNames[] = {"differs", "L2", "L1", "L0"};
  return kNames[static_cast<int>(level)];
}

std::optional<Level> level_by_name(const std::string& name) {
  for (const Level level : {Level::kL0, Level::kL1, Level::kL2}) {
    if (name == level_name(level)) return level;
  }
  return std::nullopt;
}

// Rounding errors of a gradient grow with the depth of the model, hence 4 * depth * epsilon.
// Parameters in fp32 have the default tolerance of torch.testing.assert_close.
Bounds bounds_of(Level level, const std::string& dtype, int64_t blocks) {
  const auto depth = static_cast<double>(std::max<int64_t>(blocks, 1));
  if (level == Level::kL0) return {};
  if (level == Level::kL2) {
    constexpr double kEps = 0x1p-8;
    return {1e-2, 1e-2, 1e-1, 4 * depth * kEps, {1e-2, 1e-1}};
  }
  if (dtype == "fp64") return {1e-12, 1e-10, 1e-10, 4 * depth * 0x1p-52, {1e-9, 1e-9}};
  return {2e-6, 1e-4, 4e-4, 4 * depth * 0x1p-23, {1.3e-6, 1e-5}};
}

Level required_level(const RunFacts& a, const RunFacts& b) {
  const std::string dtype = dtype_of(a, b);
  const bool half = dtype == "bf16" || dtype == "fp16";
  return half || a.product == "fp8" || b.product == "fp8" ? Level::kL2 : Level::kL1;
}

Agreement compare_runs(const RunFacts& reference, const RunFacts& run, Level required) {
  const std::string dtype = dtype_of(reference, run);
  const Level measured = std::min(required, Level::kL1);
  Agreement v;
  // Tries the tighter bounds first. The reported differences and first bad step refer to the bounds
  // of the required level, or to tighter bounds if these hold.
  for (const Level level : {Level::kL1, Level::kL2}) {
    const Bounds bounds = bounds_of(level, dtype, std::max(reference.blocks, run.blocks));
    const Pair pair(reference, run, bounds.params);
    const int64_t bad = first_bad(pair, bounds);
    if (level == measured || (bad < 0 && level > measured)) {
      measure(pair, v);
      v.first_bad = bad;
    }
    if (bad >= 0) continue;
    v.level = exact(pair) ? Level::kL0 : level;
    break;  // a wider level allows all that this one allows
  }
  if (required == Level::kL0 && v.level < required) v.first_bad = first_other_bits(reference, run);
  return v;
}

}  // namespace yoke::compare
