#include "core/compare/results.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/base/text.hpp"
#include "core/compare/recommendation.hpp"
#include "core/compare/summary.hpp"
#include "yoke/text.hpp"

namespace yoke::compare {
namespace {

using Json = nlohmann::ordered_json;

// JSON has neither NaN nor infinity.
Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

Json to_json(const std::optional<Rounding>& rounding) {
  if (!rounding) return nullptr;
  return {{"reference", number(rounding->reference)},
          {"run", number(rounding->run)},
          {"explains", rounding->explains}};
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
          {"first_bad_step", v.first_bad < 0 ? Json(nullptr) : Json(v.first_bad)},
          {"exceeded", v.exceeded},
          {"rounding", to_json(v.rounding)}};
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

Json to_json(const std::optional<Products>& products) {
  if (!products) return nullptr;
  return {{"seconds", number(products->seconds)},
          {"rounding_seconds", number(products->rounding_seconds)},
          {"all_seconds", number(products->all_seconds)},
          {"rounded", products->rounded},
          {"largest", products->largest},
          {"zeroed", products->zeroed}};
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

// The reference is not judged.
Json to_json(const CaseResult& c, bool reference = false) {
  Json json = {{"name", c.spec.name},
               {"overrides", c.spec.overrides},
               {"command", c.spec.command},
               {"passed", reference ? c.failure.empty() : c.passed()},
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
               {"due", reference ? Json(nullptr) : Json(level_name(c.required))},
               {"verdict", reference ? Json(nullptr) : to_json(c.agreement)},
               {"cause", c.cause ? to_json(*c.cause) : Json(nullptr)},
               {"repeatable", c.repeatable},
               {"differs_by_design", c.by_design},
               {"held_out_loss", c.held_out_loss ? Json(*c.held_out_loss) : Json(nullptr)},
               {"step_ms", c.step_ms},
               {"memory", number(peak_memory(c))},
               {"costs", to_json(run.costs)},
               {"products", to_json(run.products)},
               {"traffic", run.steps.empty() ? Json::array() : traffic_of(run.steps.back())},
               {"run_folder", run.dir},
               {"steps", steps_of(run)}});
  return json;
}

Json to_json(const Recommendation& answer) {
  const auto names = [](const std::vector<const CaseResult*>& cases) {
    Json all = Json::array();
    for (const CaseResult* c : cases) all.push_back(c->spec.name);
    return all;
  };
  const auto name = [](const CaseResult* c) { return c ? Json(c->spec.name) : Json(nullptr); };
  Json costs = Json::object();
  for (const auto* cases : {&answer.tied, &answer.undecided})
    for (const CaseResult* c : *cases)
      costs[c->spec.name] = {{"step_ms", number(median(c->step_ms))},
                             {"memory", number(peak_memory(*c))},
                             {"traffic", number(step_traffic(*c))}};
  return {{"ranks", answer.ranks > 0 ? Json(answer.ranks) : Json(nullptr)},
          {"take", name(answer.choice())},
          {"tied", names(answer.tied)},
          {"undecided", names(answer.undecided)},
          {"take_if_tied", name(answer.if_tied)},
          {"costs", costs},
          {"least_memory", name(answer.leanest)},
          {"text", answer.text}};
}

Json to_json(const GateResult& gate) {
  return {{"gate", gate.gate},
          {"case", gate.case_name},
          {"value", number(gate.value)},
          {"passed", gate.passed}};
}

std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

// A number for programs: all digits that matter, no separators; "" = unknown.
std::string plain(double value) {
  return std::isfinite(value) ? string_printf("%.9g", value) : "";
}

std::string reason(const CaseResult& c) {
  if (!c.failure.empty()) return c.failure;
  if (!c.repeatable) return "not repeatable";
  return c.cause ? c.cause->title : "";
}

std::vector<std::string> csv_row(const Comparison& comparison,
                                 const CaseResult& c,
                                 bool reference) {
  const bool ran = c.failure.empty();
  const bool judged = ran && !reference;
  const bool ours = ran && !c.runs[0].external();
  const auto [low, high] = std::minmax_element(c.step_ms.begin(), c.step_ms.end());
  return {c.spec.name,
          ours ? concat(c.runs[0].world()) : "",
          ours ? c.runs[0].backend : "",
          ran ? c.runs[0].layout() : "",
          (reference ? ran : c.passed()) ? "true" : "false",
          judged ? level_name(c.agreement.level) : "",
          judged ? level_name(c.required) : "",
          judged ? plain(c.agreement.loss) : "",
          judged ? plain(c.agreement.grad_norm) : "",
          judged ? plain(c.agreement.param) : "",
          c.timed() ? plain(median(c.step_ms)) : "",
          c.timed() ? plain(*low) : "",
          c.timed() ? plain(*high) : "",
          plain(tokens_per_second(comparison, c)),
          judged ? plain(speed(comparison, c)) : "",
          ran ? plain(peak_memory(c)) : "",
          ran ? plain(step_traffic(c)) : "",
          reason(c)};
}

}  // namespace

std::string to_json(const Comparison& comparison, const std::string& command, int exit_code) {
  Json cases = Json::array(), pairs = Json::array(), gates = Json::array();
  Json answers = Json::array();
  for (const Recommendation& answer : recommendations(comparison))
    answers.push_back(to_json(answer));
  for (const GateResult& gate : comparison.gates) gates.push_back(to_json(gate));
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
      {"load_average", number(comparison.load)},
      {"folder", comparison.plan.folder},
      {"judged_against", comparison.reference_name()},
      {"recommendations", answers},
      {"reference", comparison.reference ? to_json(*comparison.reference, true) : Json(nullptr)},
      {"cases", cases},
      {"gates", gates},
      {"pairs", pairs}};
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string to_markdown(const Comparison& comparison) {
  const auto line = [](const std::vector<std::string>& cells) {
    std::string text = "|";
    for (const std::string& cell : cells) text += " " + replace_all(cell, "|", "\\|") + " |";
    return text + "\n";
  };
  std::string text = line(table_header()) + "|";
  for (size_t i = 0; i < table_header().size(); ++i) text += "---|";
  text += "\n";
  for (const auto& row : table_rows(comparison)) text += line(row);
  return text;
}

std::string to_csv(const Comparison& comparison) {
  std::string text;
  const auto add = [&text](const std::vector<std::string>& cells) {
    for (size_t i = 0; i < cells.size(); ++i) text += (i == 0 ? "" : ",") + csv_cell(cells[i]);
    text += "\n";
  };
  add({"case",
       "ranks",
       "backend",
       "layout",
       "passed",
       "level",
       "required_level",
       "loss_difference",
       "grad_norm_difference",
       "parameter_difference",
       "step_ms_median",
       "step_ms_min",
       "step_ms_max",
       "tokens_per_second",
       "speed_relative_to_first",
       "peak_memory_bytes",
       "traffic_bytes",
       "reason"});
  if (comparison.reference) add(csv_row(comparison, *comparison.reference, true));
  for (const CaseResult& c : comparison.cases) add(csv_row(comparison, c, false));
  return text;
}

}  // namespace yoke::compare
