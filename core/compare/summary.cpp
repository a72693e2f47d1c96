#include "core/compare/summary.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/base/text.hpp"
#include "yoke/text.hpp"

namespace yoke::compare {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kRepeatsForAWinner = 3;

std::string or_dash(double value, const char* format) {
  return std::isnan(value) ? "-" : string_printf(format, value);
}

std::string bytes_or_dash(double bytes) {
  return std::isnan(bytes) ? "-" : bytes_text(static_cast<uint64_t>(bytes));
}

double least(const std::vector<double>& values) {
  return *std::min_element(values.begin(), values.end());
}
double most(const std::vector<double>& values) {
  return *std::max_element(values.begin(), values.end());
}

// Returns true if every repeat of the case has a time.
bool timed(const CaseResult& c) {
  return c.failure.empty() && !c.step_ms.empty() &&
         std::none_of(c.step_ms.begin(), c.step_ms.end(), [](double ms) { return std::isnan(ms); });
}

std::string level_text(const CaseResult& c) {
  if (!c.failure.empty()) return "FAILED";
  if (!c.repeatable) return "NOT REPEATABLE";
  if (c.agreement.level < c.required)
    return c.agreement.level == Level::kDiffers
               ? "DIFFERS"
               : std::string("ONLY ") + level_name(c.agreement.level);
  return level_name(c.agreement.level);
}

std::string milliseconds(const CaseResult& c) {
  if (!timed(c)) return "-";
  std::string text = string_printf("%.1f", median(c.step_ms));
  if (c.step_ms.size() > 1)
    text += string_printf(" (%.1f .. %.1f)", least(c.step_ms), most(c.step_ms));
  return text;
}

// Returns the case whose speed is 1: the first one with a time. NULL = none.
const CaseResult* baseline(const Comparison& comparison) {
  for (const CaseResult& c : comparison.cases) {
    if (timed(c)) return &c;
  }
  return nullptr;
}

// JSON has neither NaN nor infinity.
Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

Json to_json(const Agreement& v) {
  return {{"level", level_name(v.level)},
          {"loss", number(v.loss)},
          {"loss_step", v.loss_step},
          {"grad_norm", number(v.grad_norm)},
          {"gradient", number(v.gradient)},
          {"gradient_tensor", v.gradient_tensor},
          {"param", number(v.param)},
          {"param_tensor", v.param_tensor},
          {"first_bad_step", v.first_bad < 0 ? Json(nullptr) : Json(v.first_bad)}};
}

Json to_json(const LikelyCause& cause) {
  return {{"id", cause.id},
          {"title", cause.title},
          {"step", cause.step},
          {"tensor", cause.tensor},
          {"size", number(cause.size)},
          {"evidence", cause.explanation}};
}

Json to_json(const Costs& costs) {
  return {{"param", costs.param},
          {"grad", costs.grad},
          {"optimizer", costs.optimizer},
          {"unsharded", costs.unsharded},
          {"activation", costs.activation},
          {"axes", costs.axes}};
}

Json traffic_of(const StepFacts& step) {
  Json list = Json::array();
  for (const Operation& o : step.traffic) {
    list.push_back({{"axes", o.axes},
                    {"operation", o.name},
                    {"dtype", o.dtype},
                    {"calls", o.calls},
                    {"bytes", o.bytes},
                    {"seconds", o.seconds}});
  }
  return list;
}

Json steps_of(const RunFacts& run) {
  Json steps = Json::array();
  for (const StepFacts& s : run.steps) {
    steps.push_back({{"step", s.step},
                     {"loss", number(s.loss)},
                     {"grad_norm", number(s.grad_norm)},
                     {"seconds", number(s.seconds)}});
  }
  return steps;
}

Json to_json(const CaseResult& c) {
  Json json = {{"name", c.spec.name},
               {"overrides", c.spec.overrides},
               {"command", c.spec.command},
               {"passed", c.passed()},
               {"failure", c.failure}};
  if (!c.failure.empty()) {
    json["log"] = c.log;
    return json;
  }
  const RunFacts& run = c.runs[0];
  json.update({{"backend", run.backend},
               {"version", run.version},
               {"layout", run.layout()},
               {"world", run.world()},
               {"due", level_name(c.required)},
               {"verdict", to_json(c.agreement)},
               {"cause", c.cause ? to_json(*c.cause) : Json(nullptr)},
               {"repeatable", c.repeatable},
               {"step_ms", c.step_ms},
               {"memory", number(peak_memory(c))},
               {"costs", to_json(run.costs)},
               {"traffic", run.steps.empty() ? Json::array() : traffic_of(run.steps.back())},
               {"run_folder", run.dir},
               {"steps", steps_of(run)}});
  return json;
}

std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

// Describes why a case did not pass, in one or two lines.
std::string problem(const CaseResult& c, const std::string& reference) {
  if (!c.failure.empty()) return c.spec.name + " failed: " + c.failure + "; log: " + c.log;
  if (c.agreement.level >= c.required)
    return c.spec.name + " is not repeatable: its repeats do not have the same losses, bit for bit";
  if (!c.cause) return c.spec.name + " differs from " + reference;
  const LikelyCause& cause = *c.cause;
  std::string text =
      concat(c.spec.name, " differs from ", reference, ", first at step ", cause.step);
  if (!cause.tensor.empty()) text += " in '" + cause.tensor + "'";
  if (std::isfinite(cause.size)) text += string_printf(" (by %.2g)", cause.size);
  return text + ": " + cause.title + "\n  " + cause.explanation;
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
  int64_t bytes = 0;
  for (const Operation& o : c.runs[0].steps.back().traffic) bytes += o.bytes;
  return static_cast<double>(bytes);
}

std::vector<std::string> table_header() {
  return {"case",
          "layout",
          "verdict",
          "loss",
          "grad norm",
          "step, ms",
          "tokens/s",
          "speed",
          "memory",
          "traffic"};
}

std::vector<std::vector<std::string>> table_rows(const Comparison& comparison) {
  const CaseResult* first = baseline(comparison);
  std::vector<std::vector<std::string>> rows;
  const auto add = [&](const CaseResult& c, bool reference) {
    if (!c.failure.empty()) {
      rows.push_back({c.spec.name, "-", "FAILED", "-", "-", "-", "-", "-", "-", "-"});
      return;
    }
    const double ms = timed(c) ? median(c.step_ms) : kUnknown;
    const double tps = 1e3 * static_cast<double>(comparison.plan.tokens_per_step) / ms;
    rows.push_back(
        {c.spec.name,
         c.runs[0].layout(),
         reference ? "judges" : level_text(c),
         reference ? "-" : or_dash(c.agreement.loss, "%.1e"),
         reference ? "-" : or_dash(c.agreement.grad_norm, "%.1e"),
         milliseconds(c),
         std::isnan(tps) ? "-" : with_commas(tps),
         first == nullptr || reference ? "-" : or_dash(median(first->step_ms) / ms, "%.2fx"),
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

// A fastest case is named only if its slowest repeat is faster than the fastest repeat of the next
// one: medians of noisy times always differ.
std::string speed_text(const Comparison& comparison) {
  std::vector<const CaseResult*> all;
  for (const CaseResult& c : comparison.cases) {
    if (timed(c)) all.push_back(&c);
  }
  if (all.size() < 2) return "";
  std::stable_sort(all.begin(), all.end(), [](const CaseResult* a, const CaseResult* b) {
    return median(a->step_ms) < median(b->step_ms);
  });
  const CaseResult &best = *all[0], &next = *all[1];
  if (comparison.plan.repeats < kRepeatsForAWinner) {
    return concat("no fastest case is named from ",
                  comparison.plan.repeats,
                  " repeat(s): --repeats ",
                  kRepeatsForAWinner,
                  " or more");
  }
  if (most(best.step_ms) >= least(next.step_ms)) {
    return "no fastest case: the ranges of " + best.spec.name + " and " + next.spec.name +
           " overlap";
  }
  return "fastest: " + best.spec.name +
         string_printf(", %.2f times as fast as ", median(next.step_ms) / median(best.step_ms)) +
         next.spec.name +
         string_printf(" (%.2f .. %.2f)",
                       least(next.step_ms) / most(best.step_ms),
                       most(next.step_ms) / least(best.step_ms));
}

std::string to_json(const Comparison& comparison, const std::string& command, int exit_code) {
  Json cases = Json::array(), pairs = Json::array();
  for (const CaseResult& c : comparison.cases) cases.push_back(to_json(c));
  for (const PairAgreement& p : comparison.pairs) {
    Json pair = {{"a", comparison.cases[p.a].spec.name}, {"b", comparison.cases[p.b].spec.name}};
    pair.update(to_json(p.agreement));
    pairs.push_back(pair);
  }
  const Json json = {
      {"command", command},
      {"config", comparison.plan.config},
      {"exit_code", exit_code},
      {"steps", comparison.plan.steps},
      {"repeats", comparison.plan.repeats},
      {"tokens_per_step", comparison.plan.tokens_per_step},
      {"threads", comparison.plan.threads},
      {"folder", comparison.plan.folder},
      {"judged_against", comparison.reference_name()},
      {"speed", speed_text(comparison)},
      {"reference", comparison.reference ? to_json(*comparison.reference) : Json(nullptr)},
      {"cases", cases},
      {"pairs", pairs}};
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string to_markdown(const Comparison& comparison) {
  const auto line = [](const std::vector<std::string>& cells) {
    std::string text = "|";
    for (const std::string& cell : cells) text += " " + cell + " |";
    return text + "\n";
  };
  std::string text = line(table_header()) + "|";
  for (size_t i = 0; i < table_header().size(); ++i) text += "---|";
  text += "\n";
  for (const auto& row : table_rows(comparison)) text += line(row);
  return text;
}

std::string to_csv(const Comparison& comparison) {
  const auto line = [](const std::vector<std::string>& cells) {
    std::string text;
    for (const std::string& cell : cells) text += (text.empty() ? "" : ",") + csv_cell(cell);
    return text + "\n";
  };
  std::string text = line(table_header());
  for (const auto& row : table_rows(comparison)) text += line(row);
  return text;
}

}  // namespace yoke::compare
