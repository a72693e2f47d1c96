// Derives the likely cause of a difference from the records of two runs.
//
// Each rule below looks for the trace that one kind of bug leaves in these records: hashes of the
// parameters, losses of each rank, traffic of the collectives, and the gradients of the first step
// that differs. The gradients are reconstructed from the optimizer's moments in two saved states,
// so nothing has to be added to the training loop. The error of a gradient is characteristic: wrong
// by a factor means a double reduction or a wrong divisor, off by rounding noise means a
// low-precision reduction, and so on.
//
// The rules are tried in a fixed order. First come those whose trace has no other explanation, such
// as a hash that differs before the first step; then those that infer the cause from the size and
// pattern of the difference. A rule that does not find its trace returns nothing, and if none finds
// one, the result is "unknown" with the numbers that are known.

#include "core/compare/likely_cause.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "core/base/text.hpp"
#include "yoke/text.hpp"

namespace yoke::compare {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
// A gradient with a larger relative difference is wrong. This is more than rounding in fp32 causes
// and less than any fault that matters; the moments of a later step are less exact.
constexpr double kBadGradient = 1e-4;
// A gradient counts as a multiple of another if it differs from that multiple by less than this.
constexpr double kParallel = 1e-3;
// An update that differs by a larger part of its length, although the gradients agree, is wrong.
constexpr double kBadUpdate = 0.02;
// A gradient below this share of the norm of all gradients may consist of rounding noise.
constexpr double kNoise = 1e-5;

// FirstDifference is the input of the rules: the step at which the difference begins.
struct FirstDifference {
  const RunFacts &reference, &run;
  int64_t step = -1;
  const StepFacts *there = nullptr,
                  *here = nullptr;    // that step of reference and run; NULL at step 0
  std::vector<Difference> gradients;  // gradients of that step

  // Returns the first wrong gradient in the order of the model; NULL = none.
  const Difference* bad_gradient() const {
    const auto bad = std::find_if(gradients.begin(), gradients.end(), [](const Difference& d) {
      return !(d.relative <= kBadGradient);
    });
    return bad == gradients.end() ? nullptr : &*bad;
  }

  LikelyCause cause(const char* id,
                    const char* title,
                    const std::string& tensor,
                    double size,
                    const std::string& explanation) const {
    return {id, title, step, tensor, size, explanation};
  }
  // Returns a cause for the first wrong gradient, which must exist.
  LikelyCause cause(const char* id, const char* title, const std::string& explanation) const {
    return cause(id, title, bad_gradient()->tensor, bad_gradient()->relative, explanation);
  }
};

using CauseRule = std::optional<LikelyCause> (*)(const FirstDifference&);

// Range is the least and the largest of some values.
struct Range {
  double least = INFINITY, most = 0;

  void add(double value) {
    least = std::min(least, value);
    most = std::max(most, value);
  }
};

const StepFacts* find(const RunFacts& run, int64_t step) {
  for (const StepFacts& s : run.steps) {
    if (s.step == step) return &s;
  }
  return nullptr;
}

// ---- The rules ----

std::optional<LikelyCause> initial_values(const FirstDifference& d) {
  constexpr char kId[] = "initial_values", kTitle[] = "different initial bits";
  if (d.step != 0) return std::nullopt;
  if (const auto& violation = d.run.start.violation)
    return d.cause(
        kId, kTitle, violation->tensor, kUnknown, "before the first step " + violation->text);
  const auto &a = d.reference.start.hashes, &b = d.run.start.hashes;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (a[i] == b[i]) continue;
    const std::string& tensor = d.run.params[i];
    double size = kUnknown;
    if (has_state(d.reference, 0) && has_state(d.run, 0)) {
      for (const Difference& p : compare_params(d.reference, d.run, 0, {})) {
        if (p.tensor == tensor) size = p.relative;
      }
    }
    return d.cause(
        kId, kTitle, tensor, size, "the hash of '" + tensor + "' differs before the first step");
  }
  return std::nullopt;
}

std::optional<LikelyCause> same_samples(const FirstDifference& d) {
  if (d.here == nullptr || !d.here->violation || d.here->violation->kind != "samples")
    return std::nullopt;
  const Difference* bad = d.bad_gradient();
  return d.cause("same_samples",
                 "wrong samples on a data rank",
                 bad ? bad->tensor : "",
                 bad ? bad->relative : kUnknown,
                 d.here->violation->text);
}

// The correct loss of a global batch is the sum of all losses divided by the number of all targets.
// A mean of means divides the loss of each rank or micro-batch by its own number of targets: then
// scale * targets is the same for all of them, although the numbers of targets differ.
std::optional<LikelyCause> mean_of_means(const FirstDifference& d) {
  if (d.here == nullptr || d.bad_gradient() == nullptr) return std::nullopt;
  Range targets, scales, shares;
  for (const auto& rank : d.here->losses) {
    for (const Loss& l : rank) {
      if (std::isnan(l.targets) || std::isnan(l.scale)) return std::nullopt;
      targets.add(l.targets);
      scales.add(l.scale);
      shares.add(l.scale * l.targets);
    }
  }
  const bool uneven = targets.most > targets.least && scales.most > scales.least * (1 + 1e-6);
  if (!uneven || shares.most > shares.least * (1 + 1e-4)) return std::nullopt;
  return d.cause("mean_of_means",
                 "mean of means",
                 string_printf("the data ranks or micro-batches have %.0f to %.0f targets, and the "
                               "loss of each was divided by its own number of targets (scales %.6g "
                               "to %.6g) instead of by that of the whole batch",
                               targets.least,
                               targets.most,
                               scales.least,
                               scales.most));
}

// Returns the bytes that were reduced over data ranks in this step.
int64_t reduced_bytes(const StepFacts& step) {
  int64_t bytes = 0;
  for (const Operation& o : step.traffic) {
    const bool reduces = o.name == "all_reduce" || o.name == "reduce_scatter";
    const bool over_data = o.axes == "world" || o.axes.find("dp_") != std::string::npos;
    bytes += reduces && over_data ? o.bytes : 0;
  }
  return bytes;
}

std::string traffic_text(const FirstDifference& d) {
  return concat("reductions over data ranks carried ",
                bytes_text(static_cast<uint64_t>(reduced_bytes(*d.here))),
                ", the gradients in fp32 are ",
                bytes_text(static_cast<uint64_t>(4 * d.run.parameters)));
}

// If gradients are not reduced, each replica makes its own update, and the hashes of the replicas
// differ after the step.
std::optional<LikelyCause> replicas_differ(const FirstDifference& d) {
  if (d.here == nullptr || !d.here->violation || d.here->violation->kind != "replicas")
    return std::nullopt;
  const Violation& violation = *d.here->violation;
  const Difference* bad = d.bad_gradient();
  return d.cause("missing_reduction",
                 "missing reduction",
                 violation.tensor,
                 bad ? bad->relative : kUnknown,
                 "replicas differ: " + violation.text + "; " + traffic_text(d));
}

// Returns the factor that undoes clipping: the reported gradient norm divided by the norm after
// clipping; 1 if either is unknown.
double unclipped(const std::vector<Difference>& all, double applied, double norm) {
  return all.empty() || applied == 0 || std::isnan(norm) ? 1 : norm / applied;
}

// Every gradient that differs has the same direction as that of the reference, so only its length
// is wrong. Clipping would hide that, because it gives all gradients together the same norm, so it
// is undone first.
std::optional<LikelyCause> wrong_scale(const FirstDifference& d) {
  if (d.here == nullptr || d.gradients.empty()) return std::nullopt;
  const double scale = unclipped(d.gradients, norm_of_b(d.gradients), d.here->grad_norm) /
                       unclipped(d.gradients, norm_of_a(d.gradients), d.there->grad_norm);
  const Difference* first = nullptr;
  size_t wrong = 0;
  for (const Difference& g : d.gradients) {
    if (g.norm_a == 0) continue;
    if (!(g.residual <= kParallel))
      return std::nullopt;  // the direction differs, not only the length
    if (std::abs(g.factor * scale - 1) <= kParallel) continue;
    ++wrong;
    if (first == nullptr) first = &g;
  }
  if (first == nullptr) return std::nullopt;
  const double factor = first->factor * scale;
  if (factor == 0) return std::nullopt;  // a step without an update is not a matter of scale
  const std::string which =
      wrong == d.gradients.size()
          ? "every gradient"
          : concat("the gradient of ", wrong, " of ", d.gradients.size(), " tensors");
  return d.cause("wrong_scale",
                 "double reduction or wrong divisor",
                 first->tensor,
                 std::abs(factor - 1),
                 concat(which,
                        string_printf(" is %.4g times that of the reference", factor),
                        ", in the same direction; data ranks: ",
                        d.run.data_ranks,
                        ", micro-batches: ",
                        d.run.accumulation,
                        "; ",
                        traffic_text(d)));
}

// After correct clipping, the norm of all gradients together is exactly the configured limit. If
// each rank clips its own gradients before they are summed, the norm of the sum is smaller.
std::optional<LikelyCause> local_clip(const FirstDifference& d) {
  if (d.here == nullptr || d.bad_gradient() == nullptr) return std::nullopt;
  const double clip = d.reference.clip, applied = norm_of_b(d.gradients);
  const bool clips = clip > 0 && d.there->grad_norm > clip;
  if (!clips || applied >= clip * (1 - kParallel)) return std::nullopt;
  return d.cause(
      "local_clip",
      "clip before the reduction",
      string_printf("the whole gradient has norm %.4g, so clipping at %.4g leaves exactly "
                    "that; here norm %.4g was applied: parts were clipped by their own "
                    "norms, then added",
                    d.there->grad_norm,
                    clip,
                    applied));
}

std::optional<LikelyCause> low_precision(const FirstDifference& d) {
  if (d.here == nullptr || d.bad_gradient() == nullptr) return std::nullopt;
  std::string half;
  for (const Operation& o : d.here->traffic) {
    const bool reduces = o.name == "all_reduce" || o.name == "reduce_scatter";
    if (reduces && (o.dtype == "bf16" || o.dtype == "fp16")) half = o.dtype;
  }
  double largest = 0, rounded = 1;
  for (const Difference& g : d.gradients) {
    largest = std::max(largest, g.relative);
    rounded = std::min(rounded, g.rounded);
  }
  // Reductions with low precision cause a difference in the first step already. A difference that
  // begins later is a small error that has grown.
  if (half.empty() && d.step > 1) return std::nullopt;
  // Rounding to bf16 changes each addend by up to 2^-9 of its value. If addends cancel, the error
  // is a larger share of their sum.
  if (!(largest <= 0x1p-6) || !(rounded >= 0.7 || !half.empty())) return std::nullopt;
  return d.cause(
      "low_precision",
      "low-precision reduction",
      string_printf("every gradient is off by rounding noise of a half-precision dtype: at "
                    "most %.1e of a tensor, and %.0f %% of the elements differ by at "
                    "most 2^-7 of their value",
                    largest,
                    100 * rounded) +
          (half.empty() ? "" : "; gradients were reduced in " + half));
}

// Sharded parameters have no replicas that could differ, so a missing reduction shows only in the
// traffic. Reducing all gradients takes at least two bytes per parameter; less traffic than that
// means that some reduction is missing.
std::optional<LikelyCause> missing_traffic(const FirstDifference& d) {
  if (d.here == nullptr || d.run.data_ranks == 1 || d.bad_gradient() == nullptr ||
      reduced_bytes(*d.here) >= d.run.parameters * 2)
    return std::nullopt;
  return d.cause("missing_reduction", "missing reduction", traffic_text(d));
}

// The gradients of a step agree, but what the step added to the parameters does not: then the rule
// of the update is wrong, however small the difference is. A loss shows a wrong update one step
// late, so the step before is examined, too. Tensors with hardly any gradient are left out: AdamW
// makes updates of full size from their rounding noise.
std::optional<LikelyCause> wrong_update(const FirstDifference& d) {
  for (int64_t step = std::max<int64_t>(d.step - 1, 1); step <= d.step; ++step) {
    const std::vector<Difference> gradients = compare_gradients(d.reference, d.run, step);
    const std::vector<Difference> updates = compare_updates(d.reference, d.run, step);
    if (gradients.empty() || updates.empty()) continue;
    const double all = norm_of_a(gradients);
    double largest = 0;
    for (const Difference& g : gradients) largest = std::max(largest, g.relative);
    if (!(largest <= kBadGradient)) return std::nullopt;
    for (const Difference& u : updates) {
      const auto g = std::find_if(gradients.begin(), gradients.end(), [&](const Difference& other) {
        return other.tensor == u.tensor;
      });
      const bool counts = g != gradients.end() && g->norm_a > kNoise * all;
      if (!counts || u.relative <= kBadUpdate) continue;
      LikelyCause cause = d.cause(
          "wrong_update",
          "wrong update rule",
          u.tensor,
          u.relative,
          string_printf("all gradients of the step agree (at most %.1e), but the update of the "
                        "tensor differs by %.2g of its length and is %.4g times that of the "
                        "reference: compare the learning rate of the step, the bias correction, "
                        "eps and weight decay with the formulas at YokeOptimizer",
                        largest,
                        u.relative,
                        u.factor));
      cause.step = step;
      return cause;
    }
  }
  return std::nullopt;
}

LikelyCause unknown(const FirstDifference& d, const Agreement& agreement) {
  if (const Difference* bad = d.bad_gradient()) {
    const bool may_have_grown = d.step > 1 && bad->relative < 1e-2 && !agreement.rounding;
    return d.cause("unknown",
                   "not recognised",
                   concat("the gradient of '",
                          bad->tensor,
                          "' has another direction (",
                          string_printf("%.2g", bad->residual),
                          " of its norm is not along that of the reference)",
                          may_have_grown ? "; it may be rounding that grew: precision.param=fp64 "
                                           "shows whether it is"
                                         : ""));
  }
  const std::string differs = string_printf(
      "loss differs by %.2g, gradient norm by %.2g at most", agreement.loss, agreement.grad_norm);
  const std::string why =
      d.gradients.empty()
          ? "; there are no gradients to compare: the optimizer keeps no moment, or the run is "
            "external"
          : string_printf("; no gradient of this step differs by more than %.0e", kBadGradient) +
                (agreement.rounding ? ""
                                    : ": rounding that grew; precision.param=fp64 distinguishes it "
                                      "from a fault");
  return d.cause(
      "unknown", "not recognised", agreement.param_tensor, agreement.loss, differs + why);
}

// Returns the step, at most `last`, at which a gradient first differs. The loss of a step is
// computed before its update, so the loss may reveal a wrong update one step late.
int64_t step_of_gradient(const RunFacts& a, const RunFacts& b, int64_t last) {
  for (int64_t step = std::max<int64_t>(last - 1, 1); step <= last; ++step) {
    for (const Difference& d : compare_gradients(a, b, step)) {
      if (!(d.relative <= kBadGradient)) return step;
    }
  }
  return last;
}

}  // namespace

std::vector<int64_t> wanted_states(int64_t first_bad) {
  std::vector<int64_t> steps;
  for (int64_t step = std::max<int64_t>(first_bad - 2, 0); step <= first_bad; ++step)
    steps.push_back(step);
  return steps;
}

LikelyCause find_likely_cause(const RunFacts& reference,
                              const RunFacts& run,
                              const Agreement& agreement) {
  FirstDifference difference{reference, run, agreement.first_bad, nullptr, nullptr, {}};
  if (difference.step > 0) {
    difference.step = step_of_gradient(reference, run, difference.step);
    difference.there = find(reference, difference.step);
    difference.here = find(run, difference.step);
    difference.gradients = compare_gradients(reference, run, difference.step);
  }
  // Rules with an unambiguous trace come first.
  constexpr CauseRule kRules[] = {initial_values,
                                  same_samples,
                                  mean_of_means,
                                  replicas_differ,
                                  wrong_scale,
                                  local_clip,
                                  low_precision,
                                  missing_traffic,
                                  wrong_update};
  for (const CauseRule rule : kRules) {
    if (auto found = rule(difference)) return *found;
  }
  return unknown(difference, agreement);
}

}  // namespace yoke::compare
