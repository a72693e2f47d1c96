// The report must open anywhere, years later: in a CI archive, on a machine without a network, as
// an attachment. So it is one file with its style and its plots (SVG) inside, and it has no script:
// a Content-Security-Policy forbids everything but inline styles. All text from outside passes
// through escaped(). Interactive plots, which need a script, were rejected; the losses are included
// as numbers instead.

#include "core/compare/report.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base/files.hpp"
#include "core/base/text.hpp"
#include "core/compare/summary.hpp"
#include "core/compare/svg.hpp"
#include "yoke/text.hpp"

namespace yoke::compare {
namespace {

constexpr char kStyle[] = R"css(
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #ffffff; --faint: #d9d9d9; --good: #00734f; --bad: #b23c00; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --paper: #161616; --faint: #404040; --good: #4fc79f; --bad: #ff9a5c; } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 980px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; border-bottom: 1px solid var(--faint); }
table { border-collapse: collapse; font-size: 13px; display: block; overflow-x: auto; }
td, th { text-align: left; padding: 3px 12px 3px 0; border-bottom: 1px solid var(--faint); white-space: nowrap; }
.good { color: var(--good); font-weight: 600; } .bad { color: var(--bad); font-weight: 600; }
pre { font-size: 12px; overflow: auto; max-height: 28em; white-space: pre-wrap; overflow-wrap: anywhere; }
svg { width: 100%; height: auto; margin: 0.6em 0; font: 12px system-ui, sans-serif; }
svg text { fill: var(--ink); } svg .title { font-weight: 600; font-size: 13px; }
svg .axis { stroke: var(--ink); } svg .grid { stroke: var(--faint); }
svg .bound { stroke: var(--bad); stroke-dasharray: 5 4; } svg .median { stroke: var(--ink); stroke-width: 3; }
)css";

std::string section(const std::string& title, const std::string& body) {
  return body.empty() ? "" : "<h2>" + escaped(title) + "</h2>\n" + body;
}

// Returns a table. Cells that report agreement or a failure get a CSS class with a colour.
std::string table(const std::vector<std::string>& header,
                  const std::vector<std::vector<std::string>>& rows) {
  std::string out = "<table><tr>";
  for (const std::string& cell : header) out += "<th>" + escaped(cell) + "</th>";
  out += "</tr>\n";
  for (const auto& row : rows) {
    out += "<tr>";
    for (const std::string& cell : row) {
      const bool bad = cell == "DIFFERS" || cell == "FAILED" || cell == "differs" ||
                       cell == "NOT REPEATABLE" || cell.starts_with("ONLY ");
      const bool good = cell == "L0" || cell == "L1" || cell == "L2";
      out += bad ? "<td class=\"bad\">" : good ? "<td class=\"good\">" : "<td>";
      out += escaped(cell) + "</td>";
    }
    out += "</tr>\n";
  }
  return out + "</table>\n";
}

// Returns the cases that ran. The reference is the last one, so a case has the same colour in all
// plots.
std::vector<const CaseResult*> all_runs(const Comparison& comparison) {
  std::vector<const CaseResult*> all;
  for (const CaseResult& c : comparison.cases) {
    if (c.failure.empty()) all.push_back(&c);
  }
  if (comparison.reference && comparison.reference->failure.empty())
    all.push_back(&*comparison.reference);
  return all;
}

std::string losses(const Comparison& comparison) {
  Lines plot{"Loss, mean over the targets of the global batch", "step", "nats", false, {}, 0};
  for (const CaseResult* c : all_runs(comparison)) {
    Curve curve{c->spec.name, {}};
    for (const StepFacts& s : c->runs[0].steps)
      curve.points.emplace_back(static_cast<double>(s.step), s.loss);
    plot.curves.push_back(curve);
  }
  return draw(plot);
}

// Returns the curve of |b - a| / |a| for a value that every step has.
Curve differences(const CaseResult& a, const CaseResult& b, double StepFacts::*value) {
  Curve curve{b.spec.name, {}};
  const auto &left = a.runs[0].steps, &right = b.runs[0].steps;
  for (size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
    const double x = left[i].*value, y = right[i].*value;
    curve.points.emplace_back(static_cast<double>(left[i].step), std::abs(y - x) / std::abs(x));
  }
  return curve;
}

std::string difference_plots(const Comparison& comparison) {
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
  return draw(loss) + draw(norm);
}

// Shows the distribution of all steps of all repeats; medians of repeats alone would hide slow
// steps.
std::string step_times(const Comparison& comparison) {
  Boxes plot{"Time of a step over all repeats: range, middle half, median", "ms", {}};
  for (const CaseResult& c : comparison.cases) {
    if (!c.failure.empty()) continue;
    std::vector<double> ms;
    for (const RunFacts& run : c.runs) {
      for (const StepFacts& s : run.steps) {
        if (!std::isnan(s.seconds)) ms.push_back(1e3 * s.seconds);
      }
    }
    plot.rows.emplace_back(c.spec.name, ms);
  }
  return draw(plot) + "<p>" + escaped(speed_text(comparison)) + "</p>\n";
}

// Shows what the backend declares for each component, and the peak that was measured. They differ
// by the memory of the host and the allocator.
std::string memory(const Comparison& comparison) {
  Bars plot{"Memory of a rank by component, as the backend counts it",
            "MiB",
            {"parameters", "gradients", "optimizer", "unsharded", "activations"},
            {},
            1024.0 * 1024.0};
  std::vector<std::vector<std::string>> rows;
  for (const CaseResult& c : comparison.cases) {
    if (!c.failure.empty()) continue;
    const double peak = peak_memory(c);
    rows.push_back({c.spec.name, std::isnan(peak) ? "-" : bytes_text(static_cast<uint64_t>(peak))});
    if (c.runs[0].external()) continue;
    const Costs& k = c.runs[0].costs;
    std::vector<double> parts;
    for (const int64_t bytes : {k.param, k.grad, k.optimizer, k.unsharded, k.activation})
      parts.push_back(static_cast<double>(bytes));
    plot.rows.emplace_back(c.spec.name, parts);
  }
  return draw(plot) + table({"case", "largest peak resident memory of any rank"}, rows);
}

// Compares the bytes of the last step with those that the backend declared, for each set of axes.
// For data parallelism a further column has the bytes of all gradients, which is the payload of
// reducing each gradient once.
std::string traffic(const Comparison& comparison) {
  std::vector<std::vector<std::string>> rows;
  const auto text = [](int64_t bytes) {
    return bytes <= 0 ? "-" : bytes_text(static_cast<uint64_t>(bytes));
  };
  for (const CaseResult& c : comparison.cases) {
    if (!c.failure.empty() || c.runs[0].external() || c.runs[0].steps.empty()) continue;
    const RunFacts& run = c.runs[0];
    std::map<std::string, std::pair<int64_t, std::string>> axes;
    for (const Operation& o : run.steps.back().traffic) {
      auto& [bytes, what] = axes[o.axes];
      bytes += o.bytes;
      what += concat(what.empty() ? "" : ", ", o.calls, " ", o.name, " ", o.dtype);
    }
    for (const auto& [axis, use] : axes) {
      const auto declared = run.costs.axes.find(axis);
      const bool data = axis.find("dp_") != std::string::npos;
      const int64_t item = run.dtype == "fp64" ? 8 : 4;
      rows.push_back({c.spec.name,
                      axis,
                      text(use.first),
                      declared == run.costs.axes.end() ? "-" : text(declared->second),
                      data ? text(item * run.parameters) : "-",
                      use.second});
    }
  }
  if (rows.empty()) return "";
  return table(
      {"case", "axes", "measured", "declared by the backend", "every gradient once", "operations"},
      rows);
}

std::string pairs(const Comparison& comparison) {
  std::vector<std::vector<std::string>> rows;
  for (const PairAgreement& p : comparison.pairs) {
    rows.push_back(
        {comparison.cases[p.a].spec.name,
         comparison.cases[p.b].spec.name,
         level_name(p.agreement.level),
         string_printf("%.1e", p.agreement.loss),
         std::isnan(p.agreement.grad_norm) ? "-" : string_printf("%.1e", p.agreement.grad_norm),
         std::isnan(p.agreement.param) ? "-" : string_printf("%.1e", p.agreement.param)});
  }
  if (rows.empty()) return "";
  return table({"a", "b", "level", "loss", "grad norm", "parameter"}, rows);
}

std::string numbers(const Comparison& comparison) {
  const std::vector<const CaseResult*> all = all_runs(comparison);
  if (all.empty()) return "";
  std::string text = "step";
  size_t steps = 0;
  for (const CaseResult* c : all) {
    text += "\t" + c->spec.name;
    steps = std::max(steps, c->runs[0].steps.size());
  }
  for (size_t i = 0; i < steps; ++i) {
    text += "\n" + std::to_string(i + 1);
    for (const CaseResult* c : all) {
      const auto& s = c->runs[0].steps;
      text += "\t" + (i < s.size() ? string_printf("%.9g", s[i].loss) : "");
    }
  }
  return "<details><summary>Losses as numbers</summary><pre>" + escaped(text) +
         "</pre></details>\n";
}

// Returns a table of env.json of the first run that has one, and the backend of each case.
std::string environment(const Comparison& comparison) {
  const std::vector<const CaseResult*> all = all_runs(comparison);
  for (const CaseResult* c : all) {
    const std::string path = c->runs[0].dir + "/env.json";
    if (c->spec.external() || !std::filesystem::exists(path)) continue;
    const auto json = nlohmann::ordered_json::parse(read_text(path, 1 << 20), nullptr, false);
    std::vector<std::vector<std::string>> rows;
    for (const auto& [key, value] : json.items())
      rows.push_back({key, value.is_string() ? value.get<std::string>() : value.dump()});
    for (const CaseResult* one : all) {
      if (one->spec.external()) continue;
      rows.push_back(
          {"backend of " + one->spec.name,
           one->runs[0].backend + " " + one->runs[0].version + ", " + one->runs[0].layout()});
    }
    return table({"what", "value"}, rows);
  }
  return "";
}

std::string headline(const Comparison& comparison) {
  size_t passed = 0;
  for (const CaseResult& c : comparison.cases) passed += c.passed() ? 1 : 0;
  const bool all = passed == comparison.cases.size();
  return concat("<p class=\"",
                all ? "good" : "bad",
                "\">",
                passed,
                " of ",
                comparison.cases.size(),
                " cases agree with ",
                escaped(comparison.reference_name()),
                "</p>\n");
}

std::string legend_of_levels() {
  return "<p>L0: the same bits at every step. L1: equal up to the order of summation. L2: equal up "
         "to the rounding of a half-precision dtype. Loss and grad norm are the largest relative "
         "differences over all steps; speed is relative to the first case.</p>\n";
}

}  // namespace

// The sections are in the order of a reader's questions: do the cases agree, what differs and why,
// how fast are they, what do they cost, and how can the comparison be repeated?
std::string to_html(const Comparison& comparison, const std::string& command) {
  std::string words;
  for (const std::string& text : problems(comparison))
    words += "<pre class=\"bad\">" + escaped(text) + "</pre>\n";
  return "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
         "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
         "'unsafe-inline'\">\n<meta name=\"viewport\" content=\"width=device-width\">\n<title>yoke "
         "compare: " +
         escaped(comparison.plan.config) + "</title>\n<style>" + kStyle +
         "</style></head><body>\n<h1>" + escaped(comparison.plan.config) + ": " +
         std::to_string(comparison.plan.steps) + " steps, " +
         std::to_string(comparison.plan.repeats) + " repeats</h1>\n" + headline(comparison) +
         table(table_header(), table_rows(comparison)) + legend_of_levels() +
         section("What differs, and why", words) + section("Losses", losses(comparison)) +
         section("Differences", difference_plots(comparison)) +
         section("Time", step_times(comparison)) + section("Memory", memory(comparison)) +
         section("Traffic of a step and rank", traffic(comparison)) +
         section("Every two cases", pairs(comparison)) + section("Numbers", numbers(comparison)) +
         section("Environment", environment(comparison)) +
         section("To repeat it", "<pre>" + escaped(command) + "</pre>\n") + "</body></html>\n";
}

}  // namespace yoke::compare
