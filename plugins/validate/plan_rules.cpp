#include "plugins/validate/plan_rules.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "plugins/validate/guarded.hpp"
#include "plugins/validate/rules.hpp"
#include "plugins/validate/tensors.hpp"
#include "yoke/plan.h"

namespace yoke::validate {
namespace {

// A refusal or a note.
struct Message {
  std::string key, given, allowed, hint;
  int32_t note;
  bool operator==(const Message&) const = default;
};

// What a call of plan has done.
struct Answer {
  int32_t code = YOKE_OK;
  YokeError err = make_error();
  YokePlan plan{};
  bool overwritten = false;  // bytes behind the plan, or its header
  std::vector<Message> messages;
  int refusals = 0;
  bool nameless = false;  // a refusal is no YokeRefusal, or has no key
};

Answer ask(const InnerBackend& inner, const YokePlanArgs& args, const YokePlan& asked, bool first) {
  Answer answer;
  Guarded<YokePlan> plan(asked);
  const auto collect = [&](const YokeRefusal& r) {
    if (r.header.struct_id != YOKE_ID_REFUSAL || view(r.key).empty()) {
      answer.nameless = true;
      return;
    }
    if (r.note == 0) ++answer.refusals;
    answer.messages.push_back({std::string(view(r.key)),
                               std::string(view(r.given)),
                               std::string(view(r.allowed)),
                               std::string(view(r.hint)),
                               r.note});
  };
  answer.code = inner.plan(args, plan.value(), collect, &answer.err, /*with_forecasts=*/first);
  answer.plan = plan.value();
  answer.overwritten = plan.overwritten();
  return answer;
}

// Returns which value that was set has changed, or "".
std::string changed(const YokePlan& before, const YokePlan& after) {
  const auto field = [](const char* key, int32_t was, int32_t is) {
    return was == 0 || was == is ? "" : concat(key, " was ", was, " and is now ", is);
  };
  std::vector<std::string> faults = {
      field("the number of ranks", before.world_size, after.world_size),
      field("train.global_batch", before.global_batch, after.global_batch),
      field("train.micro_batch", before.micro_batch, after.micro_batch)};
  for (int axis = 0; axis < YOKE_NUM_AXES; ++axis)
    faults.push_back(field(yoke_degree_key(axis), before.degree[axis], after.degree[axis]));
  const auto dtype = [](const char* key, int32_t was, int32_t is) {
    return was == 0 || was == is
               ? ""
               : concat(key, " was ", dtype_name(was), " and is now ", dtype_name(is));
  };
  faults.push_back(dtype("precision.param", before.param_dtype, after.param_dtype));
  faults.push_back(dtype("precision.reduce", before.reduce_dtype, after.reduce_dtype));
  if (after.optimizer != before.optimizer) faults.emplace_back("plan->optimizer is another struct");
  for (const std::string& fault : faults)
    if (!fault.empty()) return fault;
  return "";
}

// Returns what in an accepted plan the backend does not declare, or "".
std::string undeclared(const InnerBackend& inner, const YokePlan& plan) {
  const YokeDescription* described = nullptr;
  call([&](YokeError* err) { return inner.table().describe(&described, err); });
  const YokeDescription description = copied(*described);
  for (int axis = 0; axis < YOKE_NUM_AXES; ++axis) {
    if (plan.degree[axis] > 1 && (description.axes & YOKE_AXIS_BIT(axis)) == 0)
      return concat(yoke_degree_key(axis),
                    " is ",
                    plan.degree[axis],
                    ", an axis that describe does not declare");
  }
  const int32_t* end = description.param_dtypes + description.num_param_dtypes;
  if (std::find(description.param_dtypes, end, plan.param_dtype) == end)
    return concat(
        "precision.param is ", dtype_name(plan.param_dtype), ", which describe does not declare");
  if (plan.param_dtype == YOKE_F16 && inner.table().abi_minor < 1)
    return "precision.param is fp16, but the backend was built with version 1.0";
  if (plan.reduce_dtype != 0 &&
      (!is_float(plan.reduce_dtype) || item_size(plan.reduce_dtype) < item_size(plan.param_dtype)))
    return concat("precision.reduce is ",
                  string_printf("0x%x", plan.reduce_dtype),
                  " (",
                  dtype_name(plan.reduce_dtype),
                  ")");
  return "";
}

void pass_on(const YokePlanArgs& args, const Answer& answer) {
  for (const Message& m : answer.messages) {
    YokeRefusal r{};
    r.header = YOKE_HEADER(YokeRefusal, YOKE_ID_REFUSAL);
    r.key = view(m.key);
    r.given = view(m.given);
    r.allowed = view(m.allowed);
    r.hint = view(m.hint);
    r.note = m.note;
    args.refuse(args.refuse_ctx, &r);
  }
}

bool same(const Answer& a, const Answer& b) {
  const YokePlan &p = a.plan, &q = b.plan;
  const auto numbers = [](const YokePlan& plan) {
    std::vector<int32_t> list(plan.degree, plan.degree + YOKE_NUM_AXES);
    list.insert(list.end(), {plan.micro_batch, plan.param_dtype, plan.reduce_dtype});
    return list;
  };
  return a.code == b.code && a.messages == b.messages &&
         (a.code != YOKE_OK || numbers(p) == numbers(q));
}

}  // namespace

void checked_plan(const InnerBackend& inner,
                  const YokePlanArgs& args,
                  bool warn,
                  YokePlan& plan,
                  PlanReport& report) {
  const auto violated = [&](Rule rule, const std::string& what) {
    const std::string text = violation_text(rule, "plan of " + inner.name(), what);
    if (!warn) throw Error(YOKE_INTERNAL, text);
    report.note("validate.on_violation", "warn", text);
  };
  const YokePlan asked = plan;
  const YokeOptimizer optimizer = copied(*plan.optimizer);
  const Answer answer = ask(inner, args, asked, /*first=*/true);
  const Answer again = ask(inner, args, asked, /*first=*/false);
  if (answer.nameless)
    violated(Rule::kRefusalsAndCodeAgree, "a refusal has no key, or another struct_id");
  if (answer.overwritten)
    violated(Rule::kResultsStayInTheirStructs,
             "it has written behind the plan, or into its header");
  if (std::memcmp(&optimizer.kind,
                  &plan.optimizer->kind,
                  optimizer.header.struct_size - sizeof(YokeHeader)) != 0)
    violated(Rule::kPlanKeepsWhatIsSet, "it has changed the optimizer");
  if (!same(answer, again))
    violated(Rule::kPlanIsPure, "two calls with the same arguments have different results");
  if (answer.code == YOKE_OK) {
    if (answer.refusals > 0)
      violated(Rule::kRefusalsAndCodeAgree,
               concat("it reports ", answer.refusals, " refusals and returns YOKE_OK"));
    if (const std::string what = changed(asked, answer.plan); !what.empty())
      violated(Rule::kPlanKeepsWhatIsSet, what);
    if (const std::string what = undeclared(inner, answer.plan); !what.empty())
      violated(Rule::kPlanStaysWithinDescribe, what);
  }
  if (answer.code != YOKE_OK && answer.refusals > 0 && answer.code != YOKE_INVALID_ARGUMENT)
    violated(Rule::kRefusalsAndCodeAgree,
             concat("it reports ", answer.refusals, " refusals and returns code ", answer.code));
  if (answer.code != YOKE_OK && answer.refusals == 0 && answer.err.text[0] == '\0')
    violated(Rule::kFailuresAreExplained,
             concat("it returns code ", answer.code, " without a refusal or a text"));
  // The host shows only the refusals if there are any, so violations come first.
  pass_on(args, answer);
  report.add(answer.refusals);
  plan = answer.plan;
  if (answer.refusals == 0) check(answer.code, answer.err);
}

}  // namespace yoke::validate
