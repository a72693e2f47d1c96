#include "core/backend/forecast.hpp"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "yoke/error.hpp"
#include "yoke/plan.h"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void refuse(const std::string& text) {
  throw Error(YOKE_INTERNAL, "the backend's forecast is wrong: " + text);
}

// Throws if the forecast of a rank contradicts the contract.
void check(const RankForecast& rank, const YokeModelSummary& model) {
  const auto blocks = static_cast<int64_t>(model.num_blocks);
  if (rank.actions.empty()) refuse("a rank has no action");
  for (const BlockRange& stage : rank.stages) {
    if (stage.first < 0 || stage.count < 1 || stage.first + stage.count > blocks)
      refuse(
          concat("stage [", stage.first, ", ", stage.first + stage.count, ") is outside of the ") +
          concat(blocks, " blocks of the model"));
  }
  double begin = 0;
  for (const ForecastAction& a : rank.actions) {
    const bool in_time = a.begin >= begin && a.end >= a.begin && std::isfinite(a.end);
    const bool known = a.kind >= YOKE_FORECAST_OTHER && a.kind <= YOKE_FORECAST_BACKWARD_WEIGHT;
    if (!in_time || !known || a.axis < -1 || a.axis >= YOKE_NUM_AXES || a.block < -1 ||
        a.block >= blocks)
      refuse(
          concat(
              "action '", a.name, "': times must not decrease, and kind, axis and block must be ") +
          concat(
              "valid (kind ", a.kind, ", axis ", a.axis, ", block ", a.block, ", begin ", a.begin) +
          concat(", end ", a.end, ")"));
    begin = a.begin;
  }
}

// Returns the sum; -1 if a part is unknown.
int64_t sum_of_known(std::initializer_list<int64_t> parts) {
  int64_t sum = 0;
  for (const int64_t part : parts) {
    if (part < 0) return -1;
    sum += part;
  }
  return sum;
}

}  // namespace

int64_t ForecastAction::step_bytes() const {
  return sum_of_known({unsharded_bytes, activation_bytes, std::max<int64_t>(temporary_bytes, 0)});
}

double RankForecast::busy() const {
  return std::accumulate(actions.begin(), actions.end(), 0.0, [](double sum, const auto& a) {
    return sum + (a.computes() ? a.duration() : 0);
  });
}

int64_t RankForecast::bytes_at(size_t action) const {
  return sum_of_known({param_bytes, grad_bytes, optimizer_bytes, actions[action].step_bytes()});
}

size_t RankForecast::peak() const {
  const auto at =
      std::max_element(actions.begin(), actions.end(), [](const auto& a, const auto& b) {
        return a.step_bytes() < b.step_bytes();
      });
  return static_cast<size_t>(at - actions.begin());
}

double StepForecast::end() const {
  double end = 0;
  for (const RankForecast& rank : ranks) end = std::max(end, rank.actions.back().end);
  return end;
}

int64_t StepForecast::peak_bytes() const {
  int64_t most = -1;
  for (const RankForecast& rank : ranks) {
    const int64_t bytes = rank.bytes_at(rank.peak());
    if (bytes < 0) return -1;
    most = std::max(most, bytes);
  }
  return most;
}

double StepForecast::bubble() const {
  double busy = 0;
  for (const RankForecast& rank : ranks) busy += rank.busy();
  const double all = end() * static_cast<double>(ranks.size());
  return all == 0 ? 0 : 1 - busy / all;
}

double StepForecast::load(size_t rank) const {
  double sum = 0;
  for (const RankForecast& r : ranks) sum += r.busy();
  return sum == 0 ? 1 : ranks[rank].busy() * static_cast<double>(ranks.size()) / sum;
}

bool StepForecast::lacks_temporary() const {
  const auto lacks = [](const RankForecast& rank) {
    return rank.bytes_at(rank.peak()) >= 0 &&
           std::any_of(rank.actions.begin(), rank.actions.end(), [](const ForecastAction& a) {
             return a.temporary_bytes < 0;
           });
  };
  return std::any_of(ranks.begin(), ranks.end(), lacks);
}

ForecastCollector::ForecastCollector(const YokeHeader* next)
    : service_{YOKE_HEADER(YokeForecasts, YOKE_ID_FORECASTS), this, add} {
  service_.header.next = next;
}

void ForecastCollector::add(void* ctx, const YokeForecast* forecast) {
  // guard(): no exception may pass through the backend's stack frames.
  guard(nullptr, [&] {
    if (forecast == nullptr || forecast->header.struct_id != YOKE_ID_FORECAST) return;
    static_cast<ForecastCollector*>(ctx)->collect(*forecast);
  });
}

void ForecastCollector::collect(const YokeForecast& f) {
  RankForecast rank{.param_bytes = f.param_bytes,
                    .grad_bytes = f.grad_bytes,
                    .optimizer_bytes = f.optimizer_bytes};
  for (uint64_t i = 0; i < f.num_stages; ++i)
    rank.stages.push_back({f.stages[i].first, f.stages[i].count});
  for (uint64_t i = 0; i < f.num_actions; ++i) {
    const YokeForecastAction& a = f.actions[i];
    rank.actions.push_back({std::string(view(a.name)),
                            a.kind,
                            a.block,
                            a.micro,
                            a.axis,
                            a.payload_bytes,
                            a.begin,
                            a.end,
                            a.unsharded_bytes,
                            a.activation_bytes,
                            a.temporary_bytes});
  }
  coordinates_.push_back(f.pp);
  forecast_.ranks.push_back(std::move(rank));
}

StepForecast ForecastCollector::result(const YokePlan& plan, const YokeModelSummary& model) const {
  const auto ranks = static_cast<int32_t>(coordinates_.size());
  if (ranks == 0) return {};
  std::vector<int32_t> expected(ranks);
  std::iota(expected.begin(), expected.end(), 0);
  if (coordinates_ != expected || ranks != plan.degree[YOKE_PP])
    refuse(
        concat("it covers ", ranks, " coordinates on pp, but pp_degree = ", plan.degree[YOKE_PP]));
  for (const RankForecast& rank : forecast_.ranks) check(rank, model);
  return forecast_;
}

// ---- JSON ----

namespace {

constexpr const char* kKinds[] = {
    "other", "forward", "recompute", "backward", "backward_input", "backward_weight"};

Json to_json(const ForecastAction& a) {
  return {{"name", a.name},
          {"kind", kKinds[a.kind]},
          {"block", a.block},
          {"micro", a.micro},
          {"axis", a.axis < 0 ? Json() : Json(yoke_axis_name(a.axis))},
          {"payload_bytes", a.payload_bytes},
          {"begin", a.begin},
          {"end", a.end},
          {"unsharded_bytes", a.unsharded_bytes},
          {"activation_bytes", a.activation_bytes},
          {"temporary_bytes", a.temporary_bytes}};
}

// Returns the position of a name in a table.
template <size_t n>
int32_t index_of(const char* const (&names)[n], const std::string& name) {
  const auto* const at = std::find(names, names + n, name);
  if (at == names + n) throw Error(YOKE_INVALID_ARGUMENT, "unknown name '" + name + "'");
  return static_cast<int32_t>(at - names);
}

int32_t axis_of(const std::string& name) {
  int32_t axis = 0;
  while (axis < YOKE_NUM_AXES && name != yoke_axis_name(axis)) ++axis;
  if (axis == YOKE_NUM_AXES) throw Error(YOKE_INVALID_ARGUMENT, "unknown axis '" + name + "'");
  return axis;
}

ForecastAction action_from_json(const Json& json) {
  return {json.at("name"),
          index_of(kKinds, json.at("kind")),
          json.at("block"),
          json.at("micro"),
          json.at("axis").is_null() ? -1 : axis_of(json.at("axis")),
          json.at("payload_bytes"),
          json.at("begin"),
          json.at("end"),
          json.at("unsharded_bytes"),
          json.at("activation_bytes"),
          json.at("temporary_bytes")};
}

}  // namespace

Json to_json(const StepForecast& forecast) {
  Json ranks = Json::array();
  for (size_t r = 0; r < forecast.ranks.size(); ++r) {
    const RankForecast& rank = forecast.ranks[r];
    const size_t peak = rank.peak();
    Json stages = Json::array(), actions = Json::array();
    for (const BlockRange& s : rank.stages)
      stages.push_back({{"first", s.first}, {"count", s.count}});
    for (const ForecastAction& a : rank.actions) actions.push_back(to_json(a));
    ranks.push_back({{"pp", r},
                     {"stages", stages},
                     {"load", forecast.load(r)},
                     {"param_bytes", rank.param_bytes},
                     {"grad_bytes", rank.grad_bytes},
                     {"optimizer_bytes", rank.optimizer_bytes},
                     {"peak_action", peak},
                     {"peak_bytes", rank.bytes_at(peak)},
                     {"actions", actions}});
  }
  return {{"end", forecast.end()}, {"bubble", forecast.bubble()}, {"ranks", ranks}};
}

StepForecast forecast_from_json(const Json& json) {
  StepForecast forecast;
  for (const Json& r : json.at("ranks")) {
    RankForecast& rank = forecast.ranks.emplace_back();
    rank.param_bytes = r.at("param_bytes");
    rank.grad_bytes = r.at("grad_bytes");
    rank.optimizer_bytes = r.at("optimizer_bytes");
    for (const Json& s : r.at("stages")) rank.stages.push_back({s.at("first"), s.at("count")});
    for (const Json& a : r.at("actions")) rank.actions.push_back(action_from_json(a));
  }
  return forecast;
}

}  // namespace yoke
