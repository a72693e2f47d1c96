#include "core/compare/gate.hpp"

#include <charconv>
#include <cmath>

#include "core/compare/summary.hpp"
#include "yoke/error.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke::compare {
namespace {

// Returns the value of a metric for a case; `first` is the first case that ran.
using Measure = double (*)(const CaseResult& c, const CaseResult& first);

struct Metric {
  const char* name;
  Measure measure;
};

constexpr Metric kMetrics[] = {
    {"loss", [](const CaseResult& c, const CaseResult&) { return c.agreement.loss; }},
    {"grad_norm", [](const CaseResult& c, const CaseResult&) { return c.agreement.grad_norm; }},
    {"param", [](const CaseResult& c, const CaseResult&) { return c.agreement.param; }},
    {"tps",
     [](const CaseResult& c, const CaseResult& f) {
       return median(f.step_ms) / median(c.step_ms);
     }},
    {"step_ms",
     [](const CaseResult& c, const CaseResult& f) {
       return median(c.step_ms) / median(f.step_ms);
     }},
    {"memory",
     [](const CaseResult& c, const CaseResult& f) { return peak_memory(c) / peak_memory(f); }},
    {"traffic",
     [](const CaseResult& c, const CaseResult& f) { return step_traffic(c) / step_traffic(f); }},
};

std::vector<std::string> metric_names() {
  std::vector<std::string> names;
  for (const Metric& m : kMetrics) names.emplace_back(m.name);
  return names;
}

}  // namespace

Gate parse_gate(const std::string& text) {
  const size_t at = text.find_first_of("<>");
  const bool complete = at != std::string::npos && at + 2 < text.size() && text[at + 1] == '=';
  double bound = 0;
  const char* end = text.data() + text.size();
  const bool number = complete && std::from_chars(text.data() + at + 2, end, bound).ptr == end &&
                      std::isfinite(bound);
  if (!number) {
    throw Error(YOKE_INVALID_ARGUMENT,
                "--gate " + text +
                    ": expected METRIC<=NUMBER or METRIC>=NUMBER, like tps>=0.95; "
                    "metrics: " +
                    join(metric_names()));
  }
  const std::string metric = text.substr(0, at);
  for (const Metric& m : kMetrics) {
    if (metric == m.name) return {text, metric, text[at] == '>', bound};
  }
  throw Error(YOKE_INVALID_ARGUMENT,
              "--gate " + text + ": unknown metric '" + metric +
                  "'; allowed: " + join(metric_names()) + did_you_mean(metric, metric_names()));
}

std::vector<GateResult> measure(const Gate& gate, const Comparison& comparison) {
  std::vector<GateResult> results;
  const CaseResult* first = nullptr;
  for (const CaseResult& c : comparison.cases) {
    if (!c.failure.empty()) continue;
    if (first == nullptr) first = &c;
    for (const Metric& m : kMetrics) {
      if (gate.metric != m.name) continue;
      const double value = m.measure(c, *first);
      const bool passed = gate.at_least ? value >= gate.bound : value <= gate.bound;
      results.push_back({gate.text, c.spec.name, value, passed});
    }
  }
  return results;
}

std::string result_text(const GateResult& result) {
  return "gate " + result.gate + (result.passed ? " holds for " : " fails for ") +
         result.case_name + ": " +
         (std::isnan(result.value) ? "not known" : string_printf("%.4g", result.value));
}

}  // namespace yoke::compare
