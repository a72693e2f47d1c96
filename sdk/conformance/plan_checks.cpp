// Checks C9 to C11 and C31 to C34: describe and plan agree.
#include <array>
#include <cstring>
#include <thread>

#include "sdk/conformance/layouts.hpp"
#include "sdk/conformance/level.hpp"
#include "sdk/conformance/library.hpp"
#include "sdk/conformance/progress.hpp"
#include "sdk/conformance/run.hpp"
#include "yoke/plan.h"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke::conformance {
namespace {

constexpr int32_t kAllDtypes[] = {YOKE_F64, YOKE_F32, YOKE_BF16, YOKE_F16};

bool declares(const YokeDescription& d, int32_t dtype) {
  for (uint64_t i = 0; i < d.num_param_dtypes; ++i)
    if (d.param_dtypes[i] == dtype) return true;
  return false;
}

RunSpec sequence_spec(Subject& subject, const ParallelBackend& b) {
  RunSpec spec = basic_run(subject, b);
  spec.model.kind = ModelSpec::kSequence;
  return spec;
}

// Turns a plan that is refused into a failure: in these checks, accepting it is the requirement.
template <class F>
void must_accept(F&& ask) {
  try {
    ask();
  } catch (const NotRun& e) {
    throw Failed(e.what());
  }
}

// Throws Failed unless plan refuses, with a refusal that has this key and states what is allowed.
void expect_refused_key(Planned& planned, const std::string& what, const std::string& key) {
  const int32_t code = planned.ask();
  if (code == YOKE_OK && planned.refusals.empty()) throw Failed("plan accepts " + what);
  if (code != YOKE_INVALID_ARGUMENT)
    throw Failed(
        concat("plan refuses ", what, " with code ", code, ", expected YOKE_INVALID_ARGUMENT"));
  std::string keys;
  for (const PlanRefusal& r : planned.refusals) {
    if (r.key == key && (!r.allowed.empty() || !r.hint.empty())) return;
    keys += (keys.empty() ? "" : ", ") + r.key;
  }
  throw Failed(concat("plan refuses ",
                      what,
                      ", but no refusal with the key '",
                      key,
                      "' says what is allowed; keys of its refusals: ",
                      keys.empty() ? "none" : keys));
}

std::string defaults_are_accepted(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  for (int32_t world = 1; world <= subject.nproc; world *= 2) {
    RunSpec spec = sequence_spec(subject, b);
    spec.degrees = kUnset;
    Planned planned(subject, b, spec);
    planned.plan.world_size = world;
    must_accept([&] { planned.accept(); });
  }
  return "";
}

std::string undeclared_axes(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  const YokeDescription d = description_of(b);
  std::string tried;
  for (int axis = 0; axis < YOKE_NUM_AXES; ++axis) {
    if (d.axes & YOKE_AXIS_BIT(axis)) continue;
    RunSpec spec = sequence_spec(subject, b);
    spec.degrees = along({{axis, 2}});
    Planned planned(subject, b, spec);
    expect_refused_key(
        planned,
        std::string(yoke_degree_key(axis)) + " = 2, an axis that describe does not declare",
        yoke_degree_key(axis));
    tried += (tried.empty() ? "refused: " : ", ") + std::string(yoke_degree_key(axis));
  }
  return tried;
}

std::string undeclared_dtypes(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  const YokeDescription d = description_of(b);
  std::string tried;
  for (const int32_t dtype : kAllDtypes) {
    if (declares(d, dtype)) continue;
    Planned planned(subject, b, sequence_spec(subject, b));
    planned.plan.param_dtype = dtype;
    expect_refused_key(planned,
                       std::string(dtype_name(dtype)) + ", a dtype that describe does not declare",
                       "precision.param");
    tried += (tried.empty() ? "refused: " : ", ") + std::string(dtype_name(dtype));
  }
  return tried;
}

std::string declared_is_accepted(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  for (const int32_t dtype : declared_dtypes(subject, b)) {
    RunSpec spec = sequence_spec(subject, b);
    spec.model.dtype = dtype;
    must_accept([&] { Planned(subject, b, spec).accept(); });
  }
  std::string tried;
  if (subject.nproc < 2) return tried;
  for (const int axis : declared_axes(subject, b)) {
    RunSpec spec = sequence_spec(subject, b);
    spec.degrees = along({{axis, 2}});
    must_accept([&] { spec = accepted_variant(subject, b, spec); });
    tried += (tried.empty() ? "" : ", ") + std::string(yoke_degree_key(axis));
    for (const auto& [key, value] : spec.options) tried += " with " + key + " = " + value;
  }
  return tried;
}

std::string each_optimizer(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  RunSpec spec = sequence_spec(subject, b);
  spec.kind = 99;
  Planned unknown(subject, b, spec);
  expect_refused_key(unknown, "an optimizer that does not exist (99)", "train.optimizer");
  std::string accepted;
  for (const auto& [kind, momentum, name] : optimizers()) {
    if (kind == YOKE_SGD && momentum != 0) continue;  // it is there without momentum, too
    spec.kind = kind;
    spec.momentum = momentum;
    Planned planned(subject, b, spec);
    if (planned.ask() == YOKE_OK && planned.refusals.empty()) {
      accepted += (accepted.empty() ? "" : ", ") + std::string(name);
    } else {
      expect_refused_key(planned, name, "train.optimizer");
    }
  }
  if (accepted.empty()) throw Failed("plan accepts no optimizer of the contract");
  return accepted;
}

// Calls plan and returns everything that it may write, as text.
std::string answer(Planned& planned) {
  const int32_t code = planned.ask();
  std::string text = concat(code);
  const YokePlan& p = planned.plan;
  for (const int32_t degree : p.degree) text += concat(" ", degree);
  for (const int32_t field :
       {p.world_size, p.global_batch, p.micro_batch, p.param_dtype, p.reduce_dtype})
    text += concat(" ", field);
  for (const PlanRefusal& r : planned.refusals)
    text += "; " + r.key + " " + r.given + " " + r.allowed + " " + r.hint;
  return text;
}

std::string plan_is_pure(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  for (const bool refused : {false, true}) {
    RunSpec spec = sequence_spec(subject, b);
    spec.degrees = kUnset;
    if (refused) spec.kind = 99;
    std::vector<std::unique_ptr<Planned>> plans;
    for (int i = 0; i < 5; ++i) {
      plans.push_back(std::make_unique<Planned>(subject, b, spec));
      plans.back()->plan.world_size = 2;
    }
    const std::string first = answer(*plans[0]);
    std::array<std::string, 4> answers;
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([&, i] {
        try {
          answers[i] = answer(*plans[i + 1]);
        } catch (const std::exception& e) {
          answers[i] = e.what();
        }
      });
    for (std::thread& t : threads) t.join();
    for (const std::string& other : answers)
      if (other != first)
        throw Failed(
            concat("plan answered '", first, "' once and '", other, "' on another thread"));
  }
  return "";
}

std::string every_refusal(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  const YokeDescription d = description_of(b);
  RunSpec spec = sequence_spec(subject, b);
  spec.kind = 99;
  for (int axis = 0; axis < YOKE_NUM_AXES; ++axis)
    if (!(d.axes & YOKE_AXIS_BIT(axis))) spec.degrees[axis] = 2;
  if (spec.world() == 1) throw NotRun("it declares every axis");
  Planned planned(subject, b, spec);
  expect_refused_key(planned, "an unknown optimizer beside an undeclared axis", "train.optimizer");
  for (int axis = 0; axis < YOKE_NUM_AXES; ++axis)
    if (spec.degrees[axis] == 2)
      expect_refused_key(
          planned, "an undeclared axis beside an unknown optimizer", yoke_degree_key(axis));
  return "";
}

constexpr Check kRows[] = {
    {"C9",
     "plan fills in the defaults",
     "With every option at its default and every degree unset, plan accepts 1, 2, 4 ... ranks and "
     "fills in degrees whose product is the number of ranks.",
     "fill in the unset degrees in plan, and put the remaining ranks on one of your axes",
     defaults_are_accepted},
    {"C10",
     "undeclared axes are refused",
     "For each axis that describe does not declare, plan refuses degree 2 with "
     "YOKE_INVALID_ARGUMENT. A refusal names the degree key of the axis and says what is allowed.",
     "refuse it in plan, or declare the axis",
     undeclared_axes},
    {"C11",
     "plan is pure",
     "4 threads call plan with equal arguments at the same time, without a host. All of them get "
     "the same answer, whether plan accepts or refuses.",
     "keep no state in plan, and read nothing but its arguments",
     plan_is_pure},
    {"C31",
     "undeclared dtypes are refused",
     "plan refuses each of fp64, fp32, bf16 and fp16 that describe does not declare, with "
     "YOKE_INVALID_ARGUMENT and a refusal with the key precision.param.",
     "refuse it in plan, or declare the dtype",
     undeclared_dtypes},
    {"C32",
     "optimizers are accepted, or refused by name",
     "plan refuses an unknown optimizer with the key train.optimizer. It accepts each optimizer of "
     "the contract or refuses it with that key, and accepts at least one of them.",
     "compare optimizer->kind with the kinds that you implement",
     each_optimizer},
    {"C33",
     "declared axes and dtypes are accepted",
     "plan accepts every declared dtype on one rank with the default options. It accepts degree 2 "
     "along every declared axis with the default options or, if it refuses them, with one option "
     "at a different value.",
     "declare in describe only what plan accepts",
     declared_is_accepted},
    {"C34",
     "all refusals are reported at once",
     "A plan with several faults (an unknown optimizer, and degree 2 along all undeclared axes) "
     "gets a refusal for each of them.",
     "report refusals with args->refuse, and return after the last one",
     every_refusal},
};

}  // namespace

void add_plan_checks(std::vector<Check>& table) {
  table.insert(table.end(), std::begin(kRows), std::end(kRows));
}

}  // namespace yoke::conformance
