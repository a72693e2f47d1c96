#include "plugins/accelerate_compat/inner.hpp"

namespace yoke::accelerate_compat {
namespace {

std::string as_text(const YokeOption& option) {
  if (option.type == YOKE_OPTION_BOOL) return option.int_value != 0 ? "true" : "false";
  if (option.type == YOKE_OPTION_INT) return std::to_string(option.int_value);
  return std::string(view(option.string_value));
}

// "; it is ddp.yaml:3: ...", if the refused key is a degree that the config sets.
std::string said_by(const YokeString& key,
                    const Strategy& strategy,
                    const AccelerateConfig& config) {
  for (int axis = 0; axis < YOKE_NUM_AXES; ++axis) {
    if (view(key) == kDegreeKeys[axis] && config.is_given(strategy.from[axis]))
      return "; it is " + config.label(strategy.from[axis]);
  }
  return "";
}

}  // namespace

void Inner::set(const std::vector<InnerOption>& options,
                const AccelerateConfig& config,
                std::vector<Finding>& findings) {
  for (const InnerOption& wanted : options) {
    const YokeOption* option = inner_.find(wanted.key);
    if (option != nullptr && option->given != 0 && as_text(*option) != wanted.value) {
      findings.push_back({std::string(kName) + "." + wanted.key,
                          as_text(*option),
                          wanted.value + " or unset",
                          config.label(wanted.from) + " = " + config.shown(wanted.from) +
                              " says otherwise; change one of them"});
    }
    inner_.set(wanted.key, wanted.value);
  }
}

void Inner::plan(const YokePlanArgs& args,
                 const Strategy& strategy,
                 const AccelerateConfig& config,
                 YokePlan& plan,
                 PlanReport& refusals) const {
  const auto hand_on = [&](const YokeRefusal& r) {
    if (r.note != 0) return args.refuse(args.refuse_ctx, &r);
    refusals.refuse(view(r.key),
                    view(r.given),
                    view(r.allowed),
                    std::string(view(r.hint)) + said_by(r.key, strategy, config));
  };
  const int before = refusals.count();
  YokeError err = make_error();
  const int32_t code = inner_.plan(args, plan, hand_on, &err);
  if (refusals.count() == before) check(code, err);
}

}  // namespace yoke::accelerate_compat
