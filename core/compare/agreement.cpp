// Measures how much two runs differ, and decides whether correct runs may differ so much.
//
// Two backends add the same numbers in a different order, so their losses differ by rounding, and
// the difference grows with the steps. The bounds follow this: they are tight for the first 20
// steps, where a fault is visible and rounding has not grown yet, and wide afterwards. The first
// gradient and the first parameters are compared too, because a small fault of one tensor hardly
// changes the loss.
//
// How much rounding changes a result depends on the model, so bounds that suit language models can
// be too tight for others. If two runs in fp32 exceed the bounds of L1, the reference runs once
// more in fp64, and both runs are judged by their distances to it, step by step: a difference at a
// step is rounding if the reference has been about as far from the run in fp64 before. The
// alternative, wider bounds for everybody, would hide faults.
//
// The level of a pair is the closest one whose bounds hold. Equality of bits is checked with the
// hashes of the parameters, which the runs have recorded.

#include "core/compare/agreement.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "yoke/text.hpp"

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

// Excess is the earliest value that is outside of its bound.
struct Excess {
  int64_t step = -1;  // -1 = none; 0 = the initial parameters
  std::string text;

  void check(int64_t at, const std::string& what, double difference, double bound) {
    if (difference <= bound || (step >= 0 && step <= at)) return;
    step = at;
    text = what + string_printf(" of step %lld differs by %.2g, and %.2g is allowed",
                                static_cast<long long>(at),
                                difference,
                                bound);
  }
};

// Returns the larger one of a bound and kRoundingFactor times a distance of the reference from the
// run in fp64. An unknown distance changes nothing.
double widened(double bound, double distance) {
  return std::max(bound, kRoundingFactor * distance);
}

// Returns the share of the elements that are outside of their tolerance.
double share_outside(const std::vector<Difference>& params) {
  int64_t elements = 0, outside = 0;
  for (const Difference& d : params) {
    elements += d.elements;
    outside += d.outside;
  }
  return elements == 0 ? 0 : static_cast<double>(outside) / static_cast<double>(elements);
}

void check_steps(const Pair& pair, const Bounds& bounds, const Pair* noise, Excess& found) {
  double loss_noise = 0, norm_noise = 0;
  for (size_t i = 0; i < pair.steps; ++i) {
    const StepFacts &a = pair.a.steps[i], &b = pair.b.steps[i];
    if (noise != nullptr && i < noise->steps) {
      const StepFacts &exact = noise->a.steps[i], &reference = noise->b.steps[i];
      loss_noise = std::max(loss_noise, relative(exact.loss, reference.loss));
      norm_noise = std::max(norm_noise, relative(exact.grad_norm, reference.grad_norm));
    }
    const double loss = widened(loss_bound(bounds, a.step), loss_noise);
    found.check(a.step, "the loss", relative(a.loss, b.loss), loss);
    if (a.step <= kEarly && !std::isnan(a.grad_norm) && !std::isnan(b.grad_norm)) {
      const double norm = widened(bounds.grad_norm, norm_noise);
      found.check(a.step, "the gradient norm", relative(a.grad_norm, b.grad_norm), norm);
    }
    if (b.violation && !(found.step >= 0 && found.step <= a.step))
      found = {a.step, b.violation->text};
  }
}

// AdamW divides by the root of a gradient's mean square, which magnifies rounding where the addends
// of a gradient cancel. So a few elements of a correct run may be outside of their tolerance.
void check_tensors(const Pair& pair, const Bounds& bounds, const Pair* noise, Excess& found) {
  constexpr double kShareOutside = 1e-4;
  for (size_t i = 0; i < pair.gradients.size(); ++i) {
    const Difference& d = pair.gradients[i];
    const bool known = noise != nullptr && i < noise->gradients.size();
    const double bound = widened(bounds.gradient, known ? noise->gradients[i].relative : 0);
    found.check(1, "the gradient of '" + d.tensor + "'", d.relative, bound);
  }
  for (size_t i = 0; i < pair.params.size(); ++i) {
    const auto& [step, params] = pair.params[i];
    const bool known = noise != nullptr && i < noise->params.size();
    const double bound = widened(kShareOutside, known ? share_outside(noise->params[i].second) : 0);
    found.check(step, "the share of parameters that are not close", share_outside(params), bound);
  }
}

// Returns the earliest excess. `noise` is the pair of the run in fp64 and the reference, if `pair`
// is that of the run in fp64 and the run to be judged; else NULL.
Excess first_excess(const Pair& pair, const Bounds& bounds, const Pair* noise = nullptr) {
  const RunFacts &a = pair.a, &b = pair.b;
  const bool known = noise == nullptr && !a.start.hashes.empty() && !b.start.hashes.empty();
  if (b.start.violation) return {0, b.start.violation->text};
  if (known && a.start.hashes != b.start.hashes) return {0, "the initial parameters differ"};
  Excess found;
  check_steps(pair, bounds, noise, found);
  check_tensors(pair, bounds, noise, found);
  return found;
}

double largest_loss(const Pair& pair) {
  double largest = 0;
  for (size_t i = 0; i < pair.steps; ++i)
    largest = std::max(largest, relative(pair.a.steps[i].loss, pair.b.steps[i].loss));
  return largest;
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
  bool norms = false;
  for (size_t i = 0; i < pair.steps; ++i)
    norms =
        norms || !(std::isnan(pair.a.steps[i].grad_norm) || std::isnan(pair.b.steps[i].grad_norm));
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
    const Excess excess = first_excess(pair, bounds);
    if (level == measured || (excess.step < 0 && level > measured)) {
      measure(pair, v);
      v.first_bad = excess.step;
      v.exceeded = excess.text;
    }
    if (excess.step >= 0) continue;
    v.level = exact(pair) ? Level::kL0 : level;
    break;  // a wider level allows all that this one allows
  }
  if (required == Level::kL0 && v.level < required) v.first_bad = first_other_bits(reference, run);
  return v;
}

bool needs_exact_run(const RunFacts& reference, const RunFacts& run, const Agreement& agreement) {
  const bool in_fp32 =
      dtype_of(reference, run) == "fp32" && reference.product != "fp8" && run.product != "fp8";
  // Rounding in a single step cannot cause a difference as large as this.
  constexpr double kFault = 1e-2;
  return in_fp32 && agreement.level < Level::kL1 && agreement.first_bad > 0 &&
         !(agreement.gradient > kFault);
}

void judge_rounding(const RunFacts& exact,
                    const RunFacts& reference,
                    const RunFacts& run,
                    Agreement& agreement) {
  const Bounds bounds =
      bounds_of(Level::kL1, "fp32", std::max({exact.blocks, reference.blocks, run.blocks}));
  const Pair of_reference(exact, reference, bounds.params), of_run(exact, run, bounds.params);
  const bool explains = first_excess(of_run, bounds, &of_reference).step < 0;
  agreement.rounding = Rounding{largest_loss(of_reference), largest_loss(of_run), explains};
  if (!explains) return;
  agreement.level = Level::kL1;
  agreement.first_bad = -1;
}

}  // namespace yoke::compare
