// The user of another program's config has not written a run file for the backend that runs it, so
// a refusal by that backend also names the setting of the config that caused it.
#include "sdk/compat/delegate.hpp"

#include "yoke/plan.h"

namespace yoke::compat {
namespace {

std::string as_text(const YokeOption& option) {
  if (option.type == YOKE_OPTION_BOOL) return option.int_value != 0 ? "true" : "false";
  if (option.type == YOKE_OPTION_INT) return std::to_string(option.int_value);
  return std::string(view(option.string_value));
}

}  // namespace

void Delegate::set(const std::vector<InnerOption>& options, PlanMessages& messages) {
  for (const InnerOption& wanted : options) {
    const YokeOption* option = inner_.find(wanted.key);
    if (option != nullptr && option->given != 0 && as_text(*option) != wanted.value) {
      messages.push_back(
          {concat(inner_.name(), ".", wanted.key),
           as_text(*option),
           wanted.value + " or unset",
           concat(wanted.label, " = ", wanted.shown, " requires otherwise; change one of them")});
    }
    inner_.set(wanted.key, wanted.value);
  }
  options_ = options;
}

std::string Delegate::label_of(std::string_view key,
                               const std::function<std::string(int axis)>& degree_label) const {
  for (int axis = 0; axis < YOKE_NUM_AXES; ++axis) {
    if (key == yoke_degree_key(axis)) return degree_label(axis);
  }
  for (const InnerOption& option : options_) {
    if (key == concat(inner_.name(), ".", option.key)) return option.label;
  }
  return "";
}

void Delegate::plan(const YokePlanArgs& args,
                    const std::function<std::string(int axis)>& degree_label,
                    YokePlan& plan,
                    PlanReport& report) const {
  const auto forward = [&](const YokeRefusal& r) {
    if (r.note != 0) return args.refuse(args.refuse_ctx, &r);
    const std::string label = label_of(view(r.key), degree_label);
    report.refuse(view(r.key),
                  view(r.given),
                  view(r.allowed),
                  concat(view(r.hint), label.empty() ? "" : "; set by ", label));
  };
  const int before = report.count();
  YokeError err = make_error();
  const int32_t code = inner_.plan(args, plan, forward, &err, /*with_forecasts=*/true);
  if (report.count() == before) check(code, err);
}

}  // namespace yoke::compat
