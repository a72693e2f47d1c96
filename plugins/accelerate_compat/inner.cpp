// Delegates to ptd. The user of an Accelerate config has not written a run file for ptd, so a
// refusal by ptd also names the key of the config that caused it.
#include "plugins/accelerate_compat/inner.hpp"

#include "yoke/plan.h"

namespace yoke::accelerate_compat {
namespace {

std::string as_text(const YokeOption& option) {
  if (option.type == YOKE_OPTION_BOOL) return option.int_value != 0 ? "true" : "false";
  if (option.type == YOKE_OPTION_INT) return std::to_string(option.int_value);
  return std::string(view(option.string_value));
}

// Returns "; set by ddp.yaml:3: ..." if the refused key is a degree or an option that the config
// sets, else "".
std::string origin_of(const YokeString& key,
                      const Strategy& strategy,
                      const AccelerateConfig& config) {
  for (int axis = 0; axis < YOKE_NUM_AXES; ++axis) {
    if (view(key) == yoke_degree_key(axis) && config.is_given(strategy.from[axis]))
      return "; set by " + config.label(strategy.from[axis]);
  }
  for (const InnerOption& option : strategy.options) {
    if (view(key) == std::string(Inner::kName) + "." + option.key)
      return "; set by " + config.label(option.from);
  }
  return "";
}

}  // namespace

void Inner::set(const std::vector<InnerOption>& options,
                const AccelerateConfig& config,
                PlanMessages& messages) {
  for (const InnerOption& wanted : options) {
    const YokeOption* option = inner_.find(wanted.key);
    if (option != nullptr && option->given != 0 && as_text(*option) != wanted.value) {
      messages.push_back({std::string(kName) + "." + wanted.key,
                          as_text(*option),
                          wanted.value + " or unset",
                          config.label(wanted.from) + " = " + config.shown(wanted.from) +
                              " requires otherwise; change one of them"});
    }
    inner_.set(wanted.key, wanted.value);
  }
}

void Inner::plan(const YokePlanArgs& args,
                 const Strategy& strategy,
                 const AccelerateConfig& config,
                 YokePlan& plan,
                 PlanReport& report) const {
  const auto forward = [&](const YokeRefusal& r) {
    if (r.note != 0) return args.refuse(args.refuse_ctx, &r);
    report.refuse(view(r.key),
                  view(r.given),
                  view(r.allowed),
                  std::string(view(r.hint)) + origin_of(r.key, strategy, config));
  };
  const int before = report.count();
  YokeError err = make_error();
  const int32_t code = inner_.plan(args, plan, forward, &err, /*with_forecasts=*/true);
  if (report.count() == before) check(code, err);
}

}  // namespace yoke::accelerate_compat
