#include "core/compare/plots.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/compare/recommendation.hpp"
#include "core/compare/summary.hpp"
#include "core/compare/svg.hpp"
#include "yoke/text.hpp"

namespace yoke::compare {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

// Returns the curve of |b - a| / |a| for a value that every step has.
Curve differences(const CaseResult& a, const CaseResult& b, double StepFacts::*value) {
  Curve curve{b.spec.name, {}, false};
  const auto &left = a.runs[0].steps, &right = b.runs[0].steps;
  for (size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
    const double x = left[i].*value, y = right[i].*value;
    const double difference = std::abs(y - x) / std::abs(x);  // infinite if only x is 0
    curve.points.emplace_back(static_cast<double>(left[i].step),
                              std::isfinite(difference) ? difference : NAN);
  }
  return curve;
}

}  // namespace

std::vector<const CaseResult*> all_runs(const Comparison& comparison) {
  std::vector<const CaseResult*> all;
  for (const CaseResult& c : comparison.cases) {
    if (c.failure.empty()) all.push_back(&c);
  }
  if (comparison.reference && comparison.reference->failure.empty())
    all.push_back(&*comparison.reference);
  return all;
}

// Curves of cases that agree would cover each other, so only the reference and the cases that did
// not pass are drawn.
std::string loss_plot(const Comparison& comparison, double width) {
  const CaseResult* reference = comparison.reference_case();
  if (reference == nullptr) return "";
  Lines plot{"Loss, mean over the targets of the global batch", "step", "nats", false, {}, 0};
  for (const CaseResult* c : all_runs(comparison)) {
    if (c != reference && c->passed()) continue;
    Curve curve{c->spec.name, {}, c == reference};
    for (const StepFacts& s : c->runs[0].steps)
      curve.points.emplace_back(static_cast<double>(s.step), s.loss);
    plot.curves.push_back(curve);
  }
  return draw(plot, width);
}

std::string difference_plots(const Comparison& comparison, double width) {
  const CaseResult* reference = comparison.reference_case();
  if (reference == nullptr) return "";
  Lines loss{
      "Loss compared with " + reference->spec.name + ", relative difference (0 at the bottom)",
      "step",
      "|b - a| / a",
      true,
      {},
      0};
  Lines norm{"Gradient norm compared with " + reference->spec.name + ", relative difference",
             "step",
             "|b - a| / a",
             true,
             {},
             0};
  for (const CaseResult& c : comparison.cases) {
    if (!c.failure.empty() || &c == reference) continue;
    const Bounds bounds =
        bounds_of(c.required, reference->runs[0].dtype, reference->runs[0].blocks);
    loss.bound = std::max(loss.bound, bounds.loss);
    norm.bound = std::max(norm.bound, bounds.grad_norm);
    loss.curves.push_back(differences(*reference, c, &StepFacts::loss));
    norm.curves.push_back(differences(*reference, c, &StepFacts::grad_norm));
  }
  return draw(loss, width) + draw(norm, width);
}

std::string time_plot(const Comparison& comparison, double width) {
  Boxes plot{"Time of a step over all repeats: range, middle half, median", "ms", {}};
  for (const CaseResult* c : all_runs(comparison)) {
    std::vector<double> ms;
    for (const RunFacts& run : c->runs) {
      for (const StepFacts& s : run.steps) {
        if (!std::isnan(s.seconds)) ms.push_back(1e3 * s.seconds);
      }
    }
    plot.rows.emplace_back(c->spec.name, ms);
  }
  return draw(plot, width);
}

std::string speed_memory_plot(const Comparison& comparison, double width) {
  const std::set<const CaseResult*> chosen = advised(recommendations(comparison));
  Points plot{std::string("Time of a step and memory: the lower left corner is the best") +
                  (chosen.empty() ? "" : "; the cases to take have a ring"),
              "median step and range of the repeats, ms",
              "MiB per rank",
              {}};
  for (const CaseResult& c : comparison.cases) {
    if (!c.timed() || std::isnan(peak_memory(c))) continue;
    const int ranks = c.runs[0].external() ? 0 : c.runs[0].world();
    plot.points.push_back({c.spec.name + (c.passed() && !c.by_design ? "" : " (not comparable)"),
                           ranks == 0 ? "external" : concat(ranks, ranks == 1 ? " rank" : " ranks"),
                           median(c.step_ms),
                           peak_memory(c) / kMiB,
                           chosen.contains(&c),
                           *std::min_element(c.step_ms.begin(), c.step_ms.end()),
                           *std::max_element(c.step_ms.begin(), c.step_ms.end())});
  }
  return plot.points.size() < 2 ? "" : draw(plot, width);
}

std::string memory_plot(const Comparison& comparison, double width) {
  Bars plot{"Memory of a rank: what the backend declares, and the rest of the measured peak",
            "MiB",
            {"parameters", "gradients", "optimizer", "unsharded", "activations", "rest"},
            {},
            kMiB,
            true};
  std::vector<const CaseResult*> cases;
  for (const CaseResult& c : comparison.cases) {
    if (c.failure.empty() && !std::isnan(peak_memory(c))) cases.push_back(&c);
  }
  std::stable_sort(cases.begin(), cases.end(), [](const CaseResult* a, const CaseResult* b) {
    return peak_memory(*a) < peak_memory(*b);
  });
  for (const CaseResult* c : cases) {
    const Costs& k = c->runs[0].costs;
    std::vector<double> parts;
    double rest = peak_memory(*c);
    for (const int64_t bytes : {k.param, k.grad, k.optimizer, k.unsharded, k.activation}) {
      parts.push_back(static_cast<double>(std::max<int64_t>(bytes, 0)));
      rest -= parts.back();
    }
    parts.push_back(std::max(rest, 0.0));
    plot.rows.emplace_back(c->spec.name, parts);
  }
  return plot.rows.empty() ? "" : draw(plot, width);
}

}  // namespace yoke::compare
