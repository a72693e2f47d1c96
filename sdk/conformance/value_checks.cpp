// Checks C39 to C41: values that a backend must leave alone, and values that it must refuse.
#include "sdk/conformance/layouts.hpp"
#include "sdk/conformance/level.hpp"
#include "sdk/conformance/library.hpp"
#include "sdk/conformance/progress.hpp"
#include "yoke/plan.h"
#include "yoke/text.hpp"

namespace yoke::conformance {
namespace {

// ---- C39: unknown values ----

void expect_unimplemented(const Instance& instance, int32_t code, const std::string& what) {
  if (code == YOKE_UNIMPLEMENTED && instance.err.text[0] != 0) return;
  throw Failed(concat(what, " returned ", code, " ('", instance.err.text, "'), expected ") +
               "YOKE_UNIMPLEMENTED with a text");
}

std::string unknown_values(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  constexpr int32_t kUnknown = 0x9e9;
  on_ranks(subject, b, short_run(subject, b), [&](Instance& instance, TestModel& model) {
    const YokePlan* plan = instance.init_args.plan;
    YokePlan other = *plan;
    for (int32_t* field : {&other.param_dtype, &other.reduce_dtype}) {
      const int32_t known = *field;
      *field = kUnknown;
      instance.init_args.plan = &other;
      expect_unimplemented(instance, instance.init(), "init with an unknown dtype");
      *field = known;
    }
    instance.init_args.plan = plan;
    instance.must(instance.init(), "init");
    instance.must(instance.wrap(model.model()), "wrap_model");
    Batch batch(instance.split(), 1);
    expect_unimplemented(
        instance, instance.step(batch, 1, 0.01, 1u << 30), "step with an unknown flag");
    expect_unimplemented(
        instance,
        instance.checkpoint(kUnknown, [](const YokePiece&) -> int32_t { return YOKE_OK; }),
        "checkpoint with an unknown op");
    instance.must(instance.step(batch, 1, 0.01), "step after calls that were refused");
  });
  return "";
}

// ---- C40: what is set stays ----

void expect_same(const std::string& what, const std::string& key, double was, double is) {
  if (was == is) return;
  throw Failed(concat("with ", what, ", plan changed ", key, " from ", was, " to ", is) +
               "; it must leave what is set as it is, or refuse it");
}

// Calls plan with every field set, and compares what it leaves.
bool keeps_plan(Subject& subject, const ParallelBackend& b, RunSpec spec) {
  spec.micro_batch = 2;
  Planned asked(subject, b, spec);
  asked.accept();
  spec.reduce_dtype = asked.plan.reduce_dtype;
  Planned planned(subject, b, spec);
  const YokePlan before = planned.plan;
  const YokeOptimizer optimizer = planned.optimizer;
  if (!planned.accepts()) return false;
  const YokePlan& after = planned.plan;
  const std::string what = layout_text(spec);
  for (int axis = 0; axis < YOKE_NUM_AXES; ++axis)
    expect_same(what, yoke_degree_key(axis), before.degree[axis], after.degree[axis]);
  expect_same(what, "train.global_batch", before.global_batch, after.global_batch);
  expect_same(what, "train.micro_batch", before.micro_batch, after.micro_batch);
  expect_same(what, "precision.param", before.param_dtype, after.param_dtype);
  expect_same(what, "precision.reduce", before.reduce_dtype, after.reduce_dtype);
  expect_same(what, "the number of ranks", before.world_size, after.world_size);
  const YokeOptimizer& o = planned.optimizer;
  expect_same(what, "train.optimizer", optimizer.kind, o.kind);
  const std::pair<const char*, double YokeOptimizer::*> fields[] = {
      {"train.betas", &YokeOptimizer::beta1},
      {"train.betas", &YokeOptimizer::beta2},
      {"train.eps", &YokeOptimizer::eps},
      {"train.momentum", &YokeOptimizer::momentum},
      {"train.weight_decay", &YokeOptimizer::weight_decay},
      {"train.clip", &YokeOptimizer::clip},
      {"train.lr", &YokeOptimizer::lr}};
  for (const auto& [key, field] : fields) expect_same(what, key, optimizer.*field, o.*field);
  if (after.optimizer != &planned.optimizer)
    throw Failed("with " + what + ", plan pointed plan->optimizer to another struct");
  return true;
}

std::string keeps_what_is_set(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  std::string tried;
  for (const RunSpec& spec : one_and_two_ranks(subject, b))
    if (keeps_plan(subject, b, spec)) tried += (tried.empty() ? "" : "; ") + layout_text(spec);
  if (tried.empty()) throw NotRun("plan refuses every plan in which all fields are set");
  return tried;
}

// ---- C41: tensors of another version of DLPack ----

std::string other_dlpack(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  on_ranks(subject, b, short_run(subject, b), [&](Instance& instance, TestModel& model) {
    InstrumentedModel& watched = instance.instrument(model.model());
    instance.must(instance.init(), "init");
    instance.must(instance.wrap(watched.model()), "wrap_model");
    watched.other_dlpack = true;
    Batch batch(instance.split(), 1);
    const int32_t code = instance.step(batch, 1, 0.01);
    watched.other_dlpack = false;
    if (watched.calls[InstrumentedModel::kForward] == 0)
      throw NotRun("it uses the LibTorch blocks and not the callbacks");
    if (code == YOKE_OK)
      throw Failed(
          "a block returned a tensor with dlpack_major 2, and step used it; with any value "
          "but 1 only its deleter may be used");
    if (instance.err.text[0] == 0) throw Failed("step refused dlpack_major 2 without a text");
    if (!watched.leaks().empty())
      throw Failed("after a tensor with dlpack_major 2, " + watched.leaks());
  });
  return "";
}

constexpr Check kRows[] = {
    {"C39",
     "unknown values are refused",
     "init with an unknown dtype, step with an unknown flag and checkpoint with an unknown op "
     "return "
     "YOKE_UNIMPLEMENTED with a text. A step works afterwards.",
     "refuse every value of an enum and every bit of flags that you do not know",
     unknown_values},
    {"C40",
     "plan leaves what is set",
     "On one rank and on two along each declared axis, plan is called with every field set. It "
     "leaves "
     "the degrees, the batch, the dtypes and the optimizer as they are.",
     "fill unset fields only, and refuse a value that does not suit you",
     keeps_what_is_set},
    {"C41",
     "tensors of another DLPack version are refused",
     "Blocks return tensors with dlpack_major 2. The step fails with a text, and every tensor is "
     "passed to its deleter.",
     "compare dlpack_major with 1 before you read the tensor",
     other_dlpack},
};

}  // namespace

void add_value_checks(std::vector<Check>& table) {
  table.insert(table.end(), std::begin(kRows), std::end(kRows));
}

}  // namespace yoke::conformance
