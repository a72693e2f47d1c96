// Check C38: the forecasts of plan are what the ranks report in wrap_model.
#include <algorithm>

#include "sdk/conformance/layouts.hpp"
#include "sdk/conformance/level.hpp"
#include "sdk/conformance/library.hpp"
#include "sdk/conformance/run.hpp"
#include "yoke/text.hpp"

namespace yoke::conformance {
namespace {

// The sums and peaks of one forecast.
struct Predicted {
  int32_t pp;
  YokeWrapResult costs;
};

struct Collector {
  YokeForecasts service{YOKE_HEADER(YokeForecasts, YOKE_ID_FORECASTS), this, &Collector::add};
  std::vector<Predicted> forecasts;

  static void add(void* ctx, const YokeForecast* f) {
    YokeWrapResult costs{};
    costs.param_bytes = f->param_bytes;
    costs.grad_bytes = f->grad_bytes;
    costs.optimizer_bytes = f->optimizer_bytes;
    costs.activation_bytes = costs.unsharded_bytes = -1;
    for (uint64_t i = 0; i < f->num_actions; ++i) {
      const YokeForecastAction& a = f->actions[i];
      costs.unsharded_bytes = std::max(costs.unsharded_bytes, a.unsharded_bytes);
      costs.activation_bytes = std::max(costs.activation_bytes, a.activation_bytes);
      if (a.axis >= 0 && a.axis < YOKE_NUM_AXES && a.payload_bytes > 0)
        costs.axis_bytes[a.axis] += a.payload_bytes;
    }
    static_cast<Collector*>(ctx)->forecasts.push_back({f->pp, costs});
  }
};

std::vector<Predicted> forecasts_of(Subject& subject,
                                    const ParallelBackend& backend,
                                    const RunSpec& spec) {
  Planned planned(subject, backend, spec);
  planned.accept();
  Collector collector;
  collector.service.header.next = planned.args.header.next;
  planned.args.header.next = &collector.service.header;
  if (const int32_t code = planned.ask(); code != YOKE_OK)
    throw Failed(concat("plan returned ", code, " when it was asked for forecasts"));
  std::vector<Predicted>& all = collector.forecasts;
  const auto expected = static_cast<size_t>(planned.plan.degree[YOKE_PP]);
  bool ascending = all.size() == expected;
  for (size_t i = 0; i < all.size() && ascending; ++i)
    ascending = all[i].pp == static_cast<int32_t>(i);
  if (!all.empty() && !ascending)
    throw Failed(concat(all.size(), " forecasts, expected one for each of ", expected) +
                 " coordinates along pp, ascending");
  return all;
}

void compare(const Predicted& predicted, const YokeWrapResult& wrapped) {
  const auto expect = [&](const std::string& field, int64_t plan, int64_t wrap) {
    if (plan != wrap)
      throw Failed(concat("plan forecasts ",
                          field,
                          " = ",
                          plan,
                          " at coordinate ",
                          predicted.pp,
                          " of pp, wrap_model reports ",
                          wrap));
  };
  const YokeWrapResult& costs = predicted.costs;
  expect("param_bytes", costs.param_bytes, wrapped.param_bytes);
  expect("grad_bytes", costs.grad_bytes, wrapped.grad_bytes);
  expect("optimizer_bytes", costs.optimizer_bytes, wrapped.optimizer_bytes);
  expect("unsharded_bytes", costs.unsharded_bytes, wrapped.unsharded_bytes);
  expect("activation_bytes", costs.activation_bytes, wrapped.activation_bytes);
  for (int axis = 0; axis < YOKE_NUM_AXES; ++axis)
    expect(concat("axis_bytes[", axis, "]"), costs.axis_bytes[axis], wrapped.axis_bytes[axis]);
}

std::string forecasts_agree(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  bool any = false;
  for (const RunSpec& s : one_and_two_ranks(subject, b)) {
    const std::vector<Predicted> forecasts = forecasts_of(subject, b, s);
    any = any || !forecasts.empty();
    if (forecasts.empty()) continue;
    const int32_t ranks = s.world() / static_cast<int32_t>(forecasts.size());
    on_ranks(subject, b, s, [&](Instance& instance, TestModel& model) {
      instance.must(instance.init(), "init");
      instance.must(instance.wrap(model.model()), "wrap_model");
      compare(forecasts[instance.host->rank / ranks], instance.wrapped);
    });
  }
  if (!any) throw NotRun("it reports none");
  return "";
}

constexpr Check kRows[] = {
    {"C38",
     "forecasts are what wrap_model reports",
     "If plan reports forecasts, there is one for each coordinate along pp, in ascending order. "
     "Its "
     "byte counts, the peaks over its actions and the sums of their payloads equal those that "
     "wrap_model reports on the ranks with that coordinate.",
     "compute both from the same schedule",
     forecasts_agree},
};

}  // namespace

void add_forecast_checks(std::vector<Check>& table) {
  table.insert(table.end(), std::begin(kRows), std::end(kRows));
}

}  // namespace yoke::conformance
