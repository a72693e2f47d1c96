// Every layout is planned as a job of its own, in the way of `yoke plan`, so that the same rules
// decide and the numbers are the same. Predicting from formulas which layouts are possible was
// rejected: only the backend knows what it refuses.
#include "core/run/layouts.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "core/backend/loader.hpp"
#include "core/backend/search.hpp"
#include "core/run/job.hpp"
#include "core/run/job_forecast.hpp"
#include "yoke/plan.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using Json = nlohmann::ordered_json;

// Appends all layouts that begin with the degrees of `begin` before `axis` and need `ranks` ranks
// along the axes from there on.
void extend(Layout begin,
            size_t axis,
            int32_t ranks,
            const Degrees& given,
            int32_t axes,
            std::vector<Layout>& all) {
  if (axis == begin.size()) {
    if (ranks == 1) all.push_back(begin);
    return;
  }
  const bool declared = (axes & YOKE_AXIS_BIT(static_cast<int>(axis))) != 0;
  for (const int64_t degree : divisors(ranks)) {
    if (given[axis] ? degree != *given[axis] : degree > 1 && !declared) continue;
    begin[axis] = static_cast<int32_t>(degree);
    extend(begin, axis + 1, ranks / begin[axis], given, axes, all);
  }
}

std::vector<std::string> with_degrees(std::vector<std::string> overrides,
                                      const Layout& layout,
                                      const Degrees& given) {
  for (size_t axis = 0; axis < layout.size(); ++axis) {
    if (!given[axis])
      overrides.push_back(concat(yoke_degree_key(static_cast<int>(axis)), "=", layout[axis]));
  }
  return overrides;
}

int64_t traffic_of(const RankForecast& rank) {
  int64_t bytes = 0;
  for (const ForecastAction& a : rank.actions) {
    if (a.axis < 0) continue;
    if (a.payload_bytes < 0) return -1;
    bytes += a.payload_bytes;
  }
  return bytes;
}

// Returns whether the forecast has communication along every axis with several ranks.
bool covers_all_axes(const StepForecast& forecast, const Layout& layout) {
  std::set<int32_t> covered;
  for (const RankForecast& rank : forecast.ranks)
    for (const ForecastAction& a : rank.actions) covered.insert(a.axis);
  for (size_t axis = 0; axis < layout.size(); ++axis)
    if (layout[axis] > 1 && !covered.contains(static_cast<int32_t>(axis))) return false;
  return true;
}

LayoutCosts costs_of(const Job& job, const Layout& layout) {
  LayoutCosts costs;
  costs.degree = layout;
  costs.accumulation = job.plan->accumulation();
  costs.micro_batch = job.plan->plan().micro_batch;
  const StepForecast forecast = forecast_of(job);
  if (forecast.ranks.empty()) return costs;
  costs.idle = forecast.bubble();
  costs.all_traffic = covers_all_axes(forecast, layout);
  costs.memory = forecast.peak_bytes();
  bool known_traffic = true;
  for (const RankForecast& rank : forecast.ranks) {
    const int64_t traffic = traffic_of(rank);
    known_traffic = known_traffic && traffic >= 0;
    costs.traffic = std::max(costs.traffic, traffic);
  }
  if (!known_traffic) costs.traffic = -1;
  return costs;
}

// Returns the first fault of a text such as "this run: 2 errors\n  a\n  b".
std::string first_fault(const std::string& text) {
  const size_t begin = text.find("\n  ");
  if (begin == std::string::npos) return text;
  return text.substr(begin + 3, text.find('\n', begin + 3) - begin - 3);
}

Json degrees_json(const Layout& layout) {
  Json json = Json::object();
  for (size_t axis = 0; axis < layout.size(); ++axis)
    json[yoke_degree_key(static_cast<int>(axis))] = layout[axis];
  return json;
}

Json known(int64_t bytes) {
  return bytes < 0 ? Json(nullptr) : Json(bytes);
}

}  // namespace

std::vector<Layout> layouts_of(int32_t world_size, const Degrees& given, int32_t axes) {
  std::vector<Layout> all;
  extend({}, 0, world_size, given, axes, all);
  return all;
}

Layouts plan_layouts(const std::string& config_path,
                     const std::vector<std::string>& overrides,
                     int32_t world_size,
                     const std::map<std::string, Family>& families) {
  const RunConfig run =
      load_config(config_path, overrides, process_environment(), backend_names).run;
  const LoadedBackend backend = load_backend(
      find_backend(run.parallel_backend, search_dirs(SearchSettings::current(run.backend_path))));
  Layouts found;
  for (const Layout& layout : layouts_of(world_size, run.degrees, backend.description().axes)) {
    try {
      const Job job = make_job(config_path,
                               with_degrees(overrides, layout, run.degrees),
                               {.world_size = world_size},
                               families,
                               JobPurpose::kForecast);
      found.possible.push_back(costs_of(job, layout));
    } catch (const Refused& e) {
      found.refused.push_back({layout, first_fault(e.what())});
    }
  }
  return found;
}

Json to_json(const Layouts& layouts) {
  Json possible = Json::array(), refused = Json::array();
  for (const LayoutCosts& c : layouts.possible)
    possible.push_back({{"degrees", degrees_json(c.degree)},
                        {"micro_batch", c.micro_batch},
                        {"accumulation", c.accumulation},
                        {"memory_bytes", known(c.memory)},
                        {"traffic_bytes", known(c.traffic)},
                        {"all_traffic", c.all_traffic},
                        {"idle", c.memory < 0 && c.traffic < 0 ? Json(nullptr) : Json(c.idle)}});
  for (const RefusedLayout& r : layouts.refused)
    refused.push_back({{"degrees", degrees_json(r.degree)}, {"reason", r.reason}});
  return {{"possible", possible}, {"refused", refused}};
}

}  // namespace yoke
