#include "core/compare/run_facts.hpp"

#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "yoke/error.hpp"
#include "yoke/plan.h"
#include "yoke/text.hpp"

namespace yoke::compare {
namespace {

using Json = nlohmann::json;

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

[[noreturn]] void refuse(const std::string& where, const std::string& what) {
  throw Error(YOKE_DATA_LOSS, where + ": " + what);
}

double number(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? kUnknown : found->get<double>();
}

// Calls f with every line of a file as a JSON object. Errors name the number of the line.
void each_line(const std::string& path, const std::function<void(const Json&)>& f) {
  std::ifstream in(path);
  if (!in) refuse(path, "cannot be read");
  int n = 0;
  for (std::string line; std::getline(in, line);) {
    const std::string where = concat(path, ":", ++n);
    if (line.empty()) continue;
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object()) refuse(where, "not a JSON object: " + line.substr(0, 80));
    try {
      f(json);
    } catch (const Json::exception& e) {
      refuse(where, e.what());
    }
  }
}

std::optional<Violation> violation_of(const Json& json) {
  if (json.is_null()) return std::nullopt;
  return Violation{json.at("kind"), json.at("rank"), json.at("tensor"), json.at("text")};
}

void take_run(const Json& json, RunFacts& run) {
  run.backend = json.at("backend");
  run.version = json.at("version");
  run.dtype = json.at("dtype");
  run.product = json.at("product");
  run.update = json.at("update");
  run.degrees = json.at("degrees").get<std::map<std::string, int>>();
  run.data_ranks = json.at("data_ranks");
  run.accumulation = json.at("accumulation");
  run.blocks = json.at("blocks");
  run.parameters = json.at("parameters");
  run.params = json.at("params").get<std::vector<std::string>>();
  run.clip = json.at("clip");
  const Json& decay = json.at("exp_avg_decay");
  if (!decay.is_null()) run.exp_avg_decay = decay.get<double>();
  run.other_decays = json.value("other_decays", run.other_decays);
  const Json& costs = json.at("costs");
  run.costs = {costs.at("param"),
               costs.at("grad"),
               costs.at("optimizer"),
               costs.at("unsharded"),
               costs.at("activation"),
               costs.at("axes").get<std::map<std::string, int64_t>>()};
}

// Returns the operations of one step. The file has counts since the start of the run, so those of
// the previous step are subtracted.
std::vector<Operation> since(const std::vector<Operation>& before, const Json& now) {
  std::vector<Operation> all;
  for (const Json& t : now) {
    Operation o{t[0], t[1], t[2], t[3], t[4], t[5]};
    for (const Operation& b : before) {
      if (b.axes != o.axes || b.name != o.name || b.dtype != o.dtype) continue;
      o.calls -= b.calls;
      o.bytes -= b.bytes;
      o.seconds -= b.seconds;
    }
    if (o.calls > 0) all.push_back(o);
  }
  return all;
}

std::vector<Operation> totals(const Json& traffic) {
  return since({}, traffic);
}

StepFacts step_of(const Json& json) {
  StepFacts s;
  s.step = json.at("step");
  s.loss = number(json, "loss");
  s.grad_norm = number(json, "grad_norm");
  s.seconds = kUnknown;
  s.tokens = kUnknown;
  s.hashes = json.at("hashes").get<std::vector<uint64_t>>();
  s.violation = violation_of(json.at("violation"));
  for (const Json& rank : json.at("ranks")) {
    std::vector<Loss> losses;
    for (const Json& l : rank.at("losses")) {
      const auto value = [&](int i) { return l[i].is_null() ? kUnknown : l[i].get<double>(); };
      losses.push_back({value(0), value(1), value(2)});
    }
    s.losses.push_back(losses);
  }
  return s;
}

// Adds the products of a step.
void add_products(const Json& step, const Json& products, RunFacts& run) {
  if (!run.products) run.products.emplace();
  const double seconds = number(step, "step_seconds");
  run.products->all_seconds += seconds;
  run.products->seconds += number(products, "percent") / 100 * seconds;
  run.products->rounding_seconds += number(products, "rounding_percent") / 100 * seconds;
  run.products->rounded += products.value("rounded", int64_t{0});
  run.products->largest += products.value("largest", int64_t{0});
  run.products->zeroed += products.value("zeroed", int64_t{0});
}

void take_metrics(const std::string& path, RunFacts& run) {
  each_line(path, [&](const Json& json) {
    const int64_t step = json.at("step");
    if (json.contains("eval_loss")) run.held_out_loss = number(json, "eval_loss");
    if (json.contains("products")) add_products(json, json.at("products"), run);
    for (StepFacts& s : run.steps) {
      if (s.step != step || !json.contains("step_seconds")) continue;
      s.seconds = number(json, "step_seconds");
      s.memory = json.at("memory");
      s.tokens = std::round(number(json, "tps") * s.seconds);
    }
  });
}

}  // namespace

int RunFacts::world() const {
  int product = 1;
  for (const auto& [key, degree] : degrees) product *= degree;
  return product;
}

std::string RunFacts::layout() const {
  if (external()) return "external";
  std::string text;
  for (const char* key : YOKE_DEGREE_KEYS) {
    const auto found = degrees.find(key);
    if (found == degrees.end() || found->second == 1) continue;
    text += concat(text.empty() ? "" : ", ", key, " ", found->second);
  }
  return text.empty() ? "one rank" : text;
}

RunFacts read_run(const std::string& dir) {
  RunFacts run;
  run.dir = dir;
  std::vector<Operation> before;
  each_line(dir + "/facts.jsonl", [&](const Json& json) {
    if (json.contains("run")) return take_run(json.at("run"), run);
    StepFacts s = step_of(json);
    if (s.step == 0) {
      run.start = s;
      return;
    }
    s.traffic = since(before, json.at("traffic"));
    before = totals(json.at("traffic"));
    run.steps.push_back(s);
  });
  if (run.backend.empty()) refuse(dir + "/facts.jsonl", "the line of the run is missing");
  take_metrics(dir + "/metrics.jsonl", run);
  return run;
}

RunFacts read_external(const std::string& path, int64_t steps) {
  RunFacts run;
  const std::string allowed =
      concat("; allowed: one line with a JSON object for each of the steps 1 to ",
             steps,
             ", like {\"step\": 1, \"loss\": 6.93, \"grad_norm\": 3.6, \"step_seconds\": 0.05, "
             "\"memory\": 123456}");
  if (!std::ifstream(path)) refuse("it wrote nothing to $YOKE_COMPARE_OUT", path + allowed);
  each_line(path, [&](const Json& json) {
    StepFacts s;
    s.step = json.value("step", int64_t{-1});
    s.loss = json.contains("loss") ? number(json, "loss") : kUnknown;
    s.grad_norm = number(json, "grad_norm");
    s.seconds = number(json, "step_seconds");
    s.tokens = kUnknown;
    s.memory = json.value("memory", int64_t{0});
    const auto next = static_cast<int64_t>(run.steps.size()) + 1;
    if (s.step != next || std::isnan(s.loss))
      refuse(
          path,
          concat(
              "expected step ", next, " with a loss, got ", json.dump().substr(0, 120), allowed));
    run.steps.push_back(s);
  });
  const auto got = static_cast<int64_t>(run.steps.size());
  if (got != steps) refuse(path, concat("has ", got, " of ", steps, " steps", allowed));
  return run;
}

}  // namespace yoke::compare
