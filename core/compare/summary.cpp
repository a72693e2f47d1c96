#include "core/compare/summary.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "core/base/text.hpp"
#include "yoke/text.hpp"

namespace yoke::compare {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

std::string or_dash(double value, const char* format) {
  return std::isnan(value) ? "-" : string_printf(format, value);
}

std::string bytes_or_dash(double bytes) {
  return std::isnan(bytes) ? "-" : bytes_text(static_cast<uint64_t>(bytes));
}

std::string level_text(const CaseResult& c) {
  if (!c.failure.empty()) return "FAILED";
  if (!c.repeatable) return "NOT REPEATABLE";
  if (c.by_design) return c.runs[0].update + " update";
  if (c.agreement.level < c.required)
    return c.agreement.level == Level::kDiffers
               ? "DIFFERS"
               : std::string("ONLY ") + level_name(c.agreement.level);
  return level_name(c.agreement.level);
}

std::string milliseconds(const CaseResult& c) {
  if (!c.timed()) return "-";
  std::string text = string_printf("%.1f", median(c.step_ms));
  if (c.step_ms.size() > 1)
    text += string_printf(" (%.1f .. %.1f)", least(c.step_ms), most(c.step_ms));
  return text;
}

// Describes how far two runs are from the run in fp64.
std::string rounding_text(const Rounding& rounding,
                          const std::string& reference,
                          const std::string& name) {
  return string_printf(
      "beside a run in fp64, the losses of %s differ by %.2g and those of %s by %.2g",
      reference.c_str(),
      rounding.reference,
      name.c_str(),
      rounding.run);
}

// Describes why a case did not pass, in a few lines.
std::string problem(const CaseResult& c, const std::string& reference) {
  if (!c.failure.empty()) return c.spec.name + " failed: " + c.failure + "; log: " + c.log;
  if (!c.repeatable && (c.by_design || c.agreement.level >= c.required))
    return c.spec.name + " is not repeatable: its repeats do not have the same losses, bit for bit";
  if (!c.cause) return c.spec.name + " differs from " + reference;
  const LikelyCause& cause = *c.cause;
  std::string text =
      concat(c.spec.name, " differs from ", reference, ", first at step ", cause.step);
  if (!cause.tensor.empty()) text += " in '" + cause.tensor + "'";
  if (std::isfinite(cause.size)) text += string_printf(" (by %.2g)", cause.size);
  text += ": " + cause.title + "\n  " + cause.explanation;
  if (!c.agreement.exceeded.empty()) text += "\n  " + c.agreement.exceeded;
  if (c.agreement.rounding)
    text += "\n  rounding does not explain it: " +
            rounding_text(*c.agreement.rounding, reference, c.spec.name);
  return text;
}

// The mean over the last quarter of the steps, because single batches are noisy.
double final_loss(const CaseResult& c) {
  const std::vector<StepFacts>& steps = c.runs[0].steps;
  const size_t count = std::max<size_t>(1, steps.size() / 4);
  double sum = 0;
  for (size_t i = steps.size() - count; i < steps.size(); ++i) sum += steps[i].loss;
  return sum / static_cast<double>(count);
}

// Returns the payload bytes of rank 0 in all steps: not every step of such a backend communicates.
double all_traffic(const CaseResult& c) {
  int64_t bytes = 0;
  for (const StepFacts& s : c.runs[0].steps)
    for (const Operation& o : s.traffic) bytes += o.bytes;
  return static_cast<double>(bytes);
}

// Describes what a case that differs by design has learned, beside the reference.
std::string learned_text(const CaseResult& c, const CaseResult& reference) {
  const bool held_out = c.held_out_loss && reference.held_out_loss;
  const double ours = held_out ? *c.held_out_loss : final_loss(c);
  const double theirs = held_out ? *reference.held_out_loss : final_loss(reference);
  return (held_out ? "its held-out loss is " : "over the last steps its mean training loss is ") +
         string_printf("%.4g, %+.2g %% relative to %s",
                       ours,
                       100 * (ours / theirs - 1),
                       reference.spec.name.c_str());
}

// Returns the case on as many ranks that communicates the least, without those that differ by
// design; NULL if there is none.
const CaseResult* least_traffic(const Comparison& comparison, int world) {
  const CaseResult* least = nullptr;
  for (const CaseResult& c : comparison.cases) {
    if (!c.passed() || c.by_design || c.runs[0].external() || c.runs[0].world() != world) continue;
    if (all_traffic(c) > 0 && (least == nullptr || all_traffic(c) < all_traffic(*least)))
      least = &c;
  }
  return least;
}

// Describes a case that differs from the reference by design.
std::string by_design_text(const Comparison& comparison,
                           const CaseResult& c,
                           const CaseResult& reference) {
  const double traffic = all_traffic(c);
  std::string text = c.spec.name +
                     (c.runs[0].update == "local"
                          ? " updates its ranks independently and averages them from time to time"
                          : " updates by a rule of its own") +
                     ", so it is not compared step by step: " + learned_text(c, reference) +
                     ", and a rank communicated " + bytes_or_dash(traffic) + " in all";
  if (const CaseResult* least = least_traffic(comparison, c.runs[0].world()))
    text += string_printf(
        ", %.2g %% of that of %s", 100 * traffic / all_traffic(*least), least->spec.name.c_str());
  return text;
}

// Describes the matrix products of a run: "products take 41 % of the time, ...".
std::string products_text(const Products& p) {
  const auto share = [](double part, double all) {
    return string_printf("%.2g %%", 100 * part / all);
  };
  std::string text = "products take " + share(p.seconds, p.all_seconds) +
                     " and rounding to fp8 takes " + share(p.rounding_seconds, p.all_seconds) +
                     " of the time";
  const auto all = static_cast<double>(p.rounded);
  if (p.rounded > 0)
    text += "; of " + with_commas(all) + " rounded numbers " +
            share(static_cast<double>(p.largest), all) +
            " became the largest of their format and " + share(static_cast<double>(p.zeroed), all) +
            " zero";
  return text;
}

}  // namespace

double peak_memory(const CaseResult& c) {
  int64_t bytes = 0;
  for (const RunFacts& run : c.runs) {
    for (const StepFacts& s : run.steps) bytes = std::max(bytes, s.memory);
  }
  return bytes == 0 ? kUnknown : static_cast<double>(bytes);
}

double step_traffic(const CaseResult& c) {
  if (c.runs.empty() || c.runs[0].external() || c.runs[0].steps.empty()) return kUnknown;
  return all_traffic(c) / static_cast<double>(c.runs[0].steps.size());
}

double step_tokens(const Comparison& comparison, const CaseResult& c) {
  if (c.runs.empty() || c.runs[0].steps.empty()) return kUnknown;
  const double counted = c.runs[0].steps.back().tokens;
  return std::isnan(counted) ? static_cast<double>(comparison.plan.tokens_per_step) : counted;
}

double tokens_per_second(const Comparison& comparison, const CaseResult& c) {
  return c.timed() ? 1e3 * step_tokens(comparison, c) / median(c.step_ms) : kUnknown;
}

double speed(const Comparison& comparison, const CaseResult& c) {
  if (!c.timed()) return kUnknown;
  const auto first = std::find_if(
      comparison.cases.begin(), comparison.cases.end(), std::mem_fn(&CaseResult::timed));
  return first == comparison.cases.end() ? kUnknown : median(first->step_ms) / median(c.step_ms);
}

std::vector<std::string> table_header() {
  return {"case",
          "ranks",
          "layout",
          "verdict",
          "loss diff.",
          "norm diff.",
          "step, ms",
          "tokens/s",
          "speed",
          "memory",
          "traffic"};
}

std::vector<std::vector<std::string>> table_rows(const Comparison& comparison) {
  std::vector<std::vector<std::string>> rows;
  const auto add = [&](const CaseResult& c, bool reference) {
    if (!c.failure.empty()) {
      std::vector<std::string> row(table_header().size(), "-");
      row[0] = c.spec.name;
      row[3] = "FAILED";
      rows.push_back(std::move(row));
      return;
    }
    const double tps = tokens_per_second(comparison, c);
    rows.push_back({c.spec.name,
                    c.runs[0].external() ? "-" : concat(c.runs[0].world()),
                    reference ? c.runs[0].backend + ", " + c.runs[0].layout() : c.runs[0].layout(),
                    reference ? "judges" : level_text(c),
                    reference ? "-" : or_dash(c.agreement.loss, "%.1e"),
                    reference ? "-" : or_dash(c.agreement.grad_norm, "%.1e"),
                    milliseconds(c),
                    std::isnan(tps) ? "-" : with_commas(tps),
                    reference ? "-" : or_dash(speed(comparison, c), "%.2fx"),
                    bytes_or_dash(peak_memory(c)),
                    bytes_or_dash(step_traffic(c))});
  };
  if (comparison.reference) add(*comparison.reference, true);
  for (const CaseResult& c : comparison.cases) add(c, false);
  return rows;
}

std::vector<std::string> problems(const Comparison& comparison) {
  std::vector<std::string> all;
  if (comparison.reference && !comparison.reference->failure.empty()) {
    const std::string other = comparison.reference_name();
    all.push_back(problem(*comparison.reference, "") +
                  (other.empty() ? "" : "\n  the others are judged against " + other));
  }
  for (const CaseResult& c : comparison.cases) {
    if (!c.passed()) all.push_back(problem(c, comparison.reference_name()));
  }
  return all;
}

std::vector<std::string> remarks(const Comparison& comparison) {
  std::vector<std::string> lines;
  const CaseResult* reference = comparison.reference_case();
  for (const CaseResult& c : comparison.cases) {
    if (c.failure.empty() && c.runs[0].products)
      lines.push_back(c.spec.name + ": " + products_text(*c.runs[0].products));
    if (!c.failure.empty() || &c == reference) continue;
    if (c.by_design) {
      lines.push_back(by_design_text(comparison, c, *reference));
    } else if (c.agreement.rounding && c.agreement.rounding->explains) {
      lines.push_back(
          concat(c.spec.name, " differs from ", reference->spec.name, " by rounding: ") +
          c.agreement.exceeded + ", but " +
          rounding_text(*c.agreement.rounding, reference->spec.name, c.spec.name));
    }
  }
  return lines;
}

}  // namespace yoke::compare
