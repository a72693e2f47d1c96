#include "core/compare/diagnosis.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>

#include "core/base/text.hpp"

namespace yoke::compare {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
// Beyond rounding in fp32, below any fault that matters; moments of a later step are less exact.
constexpr double kBadGradient = 1e-4;
// A gradient that is a multiple of another up to this is that multiple.
constexpr double kParallel = 1e-3;

// What the classes look at: the step where the difference begins.
struct Scene {
  const RunFacts &reference, &run;
  int64_t step = -1;
  const StepFacts *there = nullptr, *here = nullptr;  // of reference and run; NULL at step 0
  std::vector<Difference> gradients;                  // of this step

  const Difference* first_bad_gradient() const {
    const auto bad = std::find_if(gradients.begin(), gradients.end(), [](const Difference& d) {
      return !(d.relative <= kBadGradient);
    });
    return bad == gradients.end() ? nullptr : &*bad;
  }
};

std::string print(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

const StepFacts* find(const RunFacts& run, int64_t step) {
  for (const StepFacts& s : run.steps) {
    if (s.step == step) return &s;
  }
  return nullptr;
}

Cause cause(const Scene& scene,
            const char* id,
            const char* title,
            const std::string& tensor,
            double size,
            const std::string& evidence) {
  return {id, title, scene.step, tensor, size, evidence};
}

// ---- the classes; each looks for its own evidence and says nothing without it

std::optional<Cause> initial_values(const Scene& s) {
  constexpr const char* kTitle = "different initial bits";
  if (s.step != 0) return std::nullopt;
  if (const auto& violation = s.run.start.violation) {
    return cause(s,
                 "initial_values",
                 kTitle,
                 violation->tensor,
                 kUnknown,
                 "before the first step " + violation->text);
  }
  const auto &a = s.reference.start.hashes, &b = s.run.start.hashes;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (a[i] == b[i]) continue;
    const std::string& tensor = s.run.params[i];
    double size = kUnknown;
    if (has_state(s.reference, 0) && has_state(s.run, 0)) {
      for (const Difference& d : compare_params(s.reference, s.run, 0, {})) {
        if (d.tensor == tensor) size = d.relative;
      }
    }
    return cause(s,
                 "initial_values",
                 kTitle,
                 tensor,
                 size,
                 "the hash of '" + tensor + "' differs before the first step");
  }
  return std::nullopt;
}

std::optional<Cause> same_samples(const Scene& s) {
  if (s.here == nullptr || !s.here->violation || s.here->violation->kind != "samples")
    return std::nullopt;
  const Difference* bad = s.first_bad_gradient();
  return cause(s,
               "same_samples",
               "wrong samples on a data rank",
               bad ? bad->tensor : "",
               bad ? bad->relative : kUnknown,
               s.here->violation->text);
}

std::optional<Cause> mean_of_means(const Scene& s) {
  if (s.here == nullptr || s.first_bad_gradient() == nullptr) return std::nullopt;
  double least = INFINITY, most = 0, least_mean = INFINITY, most_mean = 0;
  double least_scale = INFINITY, most_scale = 0;
  for (const auto& rank : s.here->losses) {
    for (const Loss& l : rank) {
      if (std::isnan(l.weight) || std::isnan(l.scale)) return std::nullopt;
      least = std::min(least, l.weight), most = std::max(most, l.weight);
      least_scale = std::min(least_scale, l.scale), most_scale = std::max(most_scale, l.scale);
      least_mean = std::min(least_mean, l.scale * l.weight);
      most_mean = std::max(most_mean, l.scale * l.weight);
    }
  }
  const bool uneven = most > least && most_scale > least_scale * (1 + 1e-6);
  if (!uneven || most_mean > least_mean * (1 + 1e-4)) return std::nullopt;
  const Difference& bad = *s.first_bad_gradient();
  return cause(s,
               "mean_of_means",
               "mean of means",
               bad.tensor,
               bad.relative,
               "the data ranks or micro-batches have " + print("%.0f", least) + " to " +
                   print("%.0f", most) +
                   " targets, and each one's loss was divided by its own number of them (scales " +
                   print("%.6g", least_scale) + " to " + print("%.6g", most_scale) +
                   ") instead of all by that of the whole batch");
}

// Bytes that went into reductions over data ranks in this step.
int64_t reduced_bytes(const StepFacts& step) {
  int64_t bytes = 0;
  for (const Operation& o : step.traffic) {
    const bool reduces = o.name == "all_reduce" || o.name == "reduce_scatter";
    const bool over_data = o.axes == "world" || o.axes.find("dp_") != std::string::npos;
    bytes += reduces && over_data ? o.bytes : 0;
  }
  return bytes;
}

std::string traffic_text(const Scene& s) {
  return "reductions over data ranks carried " +
         bytes_text(static_cast<uint64_t>(reduced_bytes(*s.here))) +
         ", the gradients in fp32 are " + bytes_text(static_cast<uint64_t>(4 * s.run.parameters));
}

std::optional<Cause> parted_replicas(const Scene& s) {
  if (s.here == nullptr || !s.here->violation || s.here->violation->kind != "replicas")
    return std::nullopt;
  const Violation& violation = *s.here->violation;
  const Difference* bad = s.first_bad_gradient();
  return cause(s,
               "missing_reduction",
               "missing reduction",
               violation.tensor,
               bad ? bad->relative : kUnknown,
               "replicas part: " + violation.text + "; " + traffic_text(s));
}

// Gradient as it was before clipping: per tensor, times this.
double unclipped(const std::vector<Difference>& all, double applied, double norm) {
  return all.empty() || applied == 0 || std::isnan(norm) ? 1 : norm / applied;
}

std::optional<Cause> wrong_scale(const Scene& s) {
  if (s.here == nullptr || s.gradients.empty()) return std::nullopt;
  const double scale = unclipped(s.gradients, norm_of_b(s.gradients), s.here->grad_norm) /
                       unclipped(s.gradients, norm_of_a(s.gradients), s.there->grad_norm);
  const Difference* first = nullptr;
  size_t wrong = 0;
  for (const Difference& d : s.gradients) {
    if (d.norm_a == 0) continue;
    if (!(d.residual <= kParallel)) return std::nullopt;  // another direction, not another length
    if (std::abs(d.factor * scale - 1) <= kParallel) continue;
    ++wrong;
    if (first == nullptr) first = &d;
  }
  if (first == nullptr) return std::nullopt;
  const double factor = first->factor * scale;
  std::string evidence = wrong == s.gradients.size()
                             ? "every gradient"
                             : "the gradient of " + std::to_string(wrong) + " of " +
                                   std::to_string(s.gradients.size()) + " tensors";
  evidence += " is " + print("%.4g", factor) +
              " times that of the reference, in the same direction; data ranks: " +
              std::to_string(s.run.data_ranks) +
              ", micro-batches: " + std::to_string(s.run.accumulation) + "; " + traffic_text(s);
  return cause(s,
               "wrong_scale",
               "double reduction or wrong divisor",
               first->tensor,
               std::abs(factor - 1),
               evidence);
}

std::optional<Cause> local_clip(const Scene& s) {
  if (s.here == nullptr || s.first_bad_gradient() == nullptr) return std::nullopt;
  const double clip = s.reference.clip, applied = norm_of_b(s.gradients);
  const bool clips = clip > 0 && s.there->grad_norm > clip;
  if (!clips || applied >= clip * (1 - kParallel)) return std::nullopt;
  const Difference& bad = *s.first_bad_gradient();
  return cause(s,
               "local_clip",
               "clip before the reduction",
               bad.tensor,
               bad.relative,
               "the whole gradient has norm " + print("%.4g", s.there->grad_norm) +
                   ", so clipping at " + print("%.4g", clip) + " leaves exactly that; here norm " +
                   print("%.4g", applied) +
                   " was applied: parts were clipped by their own norms, then added");
}

std::optional<Cause> low_precision(const Scene& s) {
  if (s.here == nullptr || s.first_bad_gradient() == nullptr) return std::nullopt;
  std::string half;
  for (const Operation& o : s.here->traffic) {
    const bool reduces = o.name == "all_reduce" || o.name == "reduce_scatter";
    if (reduces && (o.dtype == "bf16" || o.dtype == "fp16")) half = o.dtype;
  }
  double largest = 0, rounded = 1;
  for (const Difference& d : s.gradients) {
    largest = std::max(largest, d.relative);
    rounded = std::min(rounded, d.rounded);
  }
  // Rounding in every reduction shows from the first step on; what comes later has grown.
  if (half.empty() && s.step > 1) return std::nullopt;
  // Two rounded addends: an error of 2^-9 of each, more of a sum that cancels.
  if (!(largest <= 0x1p-6) || !(rounded >= 0.7 || !half.empty())) return std::nullopt;
  const Difference& bad = *s.first_bad_gradient();
  return cause(s,
               "low_precision",
               "low-precision reduction",
               bad.tensor,
               bad.relative,
               "every gradient is off by rounding noise of a half-precision dtype: at most " +
                   print("%.1e", largest) + " of a tensor, and " + print("%.0f", 100 * rounded) +
                   " % of the elements are within 2^-7 of theirs" +
                   (half.empty() ? "" : "; gradients were reduced in " + half));
}

// Shards have no replicas that could part.
std::optional<Cause> missing_traffic(const Scene& s) {
  if (s.here == nullptr || s.run.data_ranks == 1 || s.first_bad_gradient() == nullptr ||
      reduced_bytes(*s.here) >= s.run.parameters * 2)
    return std::nullopt;
  const Difference& bad = *s.first_bad_gradient();
  return cause(
      s, "missing_reduction", "missing reduction", bad.tensor, bad.relative, traffic_text(s));
}

Cause unknown(const Scene& s, const Verdict& v) {
  if (const Difference* bad = s.first_bad_gradient()) {
    return cause(s,
                 "unknown",
                 "not recognised",
                 bad->tensor,
                 bad->relative,
                 "the gradient of '" + bad->tensor + "' has another direction (" +
                     print("%.2g", bad->residual) + " of its norm is new)" +
                     (s.step > 1 && bad->relative < 1e-2
                          ? "; it may be rounding that grew: precision.param=fp64 tells"
                          : ""));
  }
  std::string evidence = "loss differs by " + print("%.2g", v.loss) + ", gradient norm by " +
                         print("%.2g", v.grad_norm) + " at most";
  evidence += s.gradients.empty()
                  ? "; no state to look into: the optimizer keeps no moment, or the run is external"
                  : "; no gradient of this step differs by more than " +
                        print("%.0e", kBadGradient) +
                        ": rounding that grew; precision.param=fp64 tells it from a fault";
  return cause(s, "unknown", "not recognised", v.param_tensor, v.loss, evidence);
}

// The step, at most `last`, where a gradient first differs; that of the largest steps is what is
// known.
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

Cause diagnose(const RunFacts& reference, const RunFacts& run, const Verdict& verdict) {
  Scene scene{reference, run, verdict.first_bad, nullptr, nullptr, {}};
  if (scene.step > 0) {
    scene.step = step_of_gradient(reference, run, scene.step);
    scene.there = find(reference, scene.step);
    scene.here = find(run, scene.step);
    scene.gradients = compare_gradients(reference, run, scene.step);
  }
  // Proofs first, then what only the shape of the difference tells.
  constexpr std::optional<Cause> (*kClasses[])(const Scene&) = {initial_values,
                                                                same_samples,
                                                                mean_of_means,
                                                                parted_replicas,
                                                                wrong_scale,
                                                                local_clip,
                                                                low_precision,
                                                                missing_traffic};
  for (const auto look : kClasses) {
    if (auto found = look(scene)) return *found;
  }
  return unknown(scene, verdict);
}

}  // namespace yoke::compare
