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

// Sets the options. If the user has set one of them to a different value, adds a refusal.
void set_options(InnerBackend& inner,
                 const std::vector<InnerOption>& options,
                 PlanMessages& messages) {
  for (const InnerOption& wanted : options) {
    const YokeOption* option = inner.find(wanted.key);
    if (option != nullptr && option->given != 0 && as_text(*option) != wanted.value) {
      messages.push_back(
          {concat(inner.name(), ".", wanted.key),
           as_text(*option),
           wanted.value + " or unset",
           concat(wanted.label, " = ", wanted.shown, " requires otherwise; change one of them")});
    }
    inner.set(wanted.key, wanted.value);
  }
}

// Returns the label of the setting that decides a key of the run file, "" if none does.
std::string label_of(std::string_view key,
                     const InnerBackend& inner,
                     const std::vector<InnerOption>& options,
                     const DegreeLabel& degree_label) {
  for (int axis = 0; axis < YOKE_NUM_AXES; ++axis) {
    if (key == yoke_degree_key(axis)) return degree_label(axis);
  }
  for (const InnerOption& option : options) {
    if (key == concat(inner.name(), ".", option.key)) return option.label;
  }
  return "";
}

}  // namespace

void plan_with(const Delegation& delegation,
               const DegreeLabel& degree_label,
               const YokePlanArgs& args,
               YokePlan& plan,
               PlanReport& report) {
  const std::vector<InnerOption>& options = delegation.options;
  try {
    InnerBackend inner(args, delegation.to);
    PlanMessages messages;
    set_options(inner, options, messages);
    report.add(messages);
    const auto forward = [&](const YokeRefusal& r) {
      if (r.note != 0) return args.refuse(args.refuse_ctx, &r);
      const std::string label = label_of(view(r.key), inner, options, degree_label);
      report.refuse(view(r.key),
                    view(r.given),
                    view(r.allowed),
                    concat(view(r.hint), label.empty() ? "" : "; set by ", label));
    };
    const int before = report.count();
    YokeError err = make_error();
    const int32_t code = inner.plan(args, plan, forward, &err, /*with_forecasts=*/true);
    if (report.count() == before) yoke::check(code, err);
  } catch (const Error& e) {
    report.refuse(delegation.from, delegation.to, "a backend that can be used", e.what());
  }
}

std::unique_ptr<Context> init_with(const Delegation& delegation, const YokeInitArgs& args) {
  InnerBackend inner(*args.host, delegation.to, YOKE_ALL_AXES);
  PlanMessages messages;  // already reported when the plan was made
  set_options(inner, delegation.options, messages);
  return inner.init(*args.plan);
}

}  // namespace yoke::compat
