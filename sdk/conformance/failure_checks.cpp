// Checks C17, C18 and C37: failures around a backend.
//
// A backend must return the code of the failure unchanged, and its handles must still work. The
// second requirement is hard to check from outside, so each check does what the host does after a
// failure: it loads the state saved before it and continues training. The result must be
// bit-identical to that of a run without a failure.
#include <algorithm>

#include "sdk/conformance/layouts.hpp"
#include "sdk/conformance/level.hpp"
#include "sdk/conformance/library.hpp"
#include "sdk/conformance/run.hpp"
#include "yoke/text.hpp"

namespace yoke::conformance {
namespace {

// Loads the state saved before the failure and trains the steps of the spec. Throws Failed if the
// final state differs from that of a run without a failure.
void expect_usual_run(Instance& instance,
                      const RunSpec& spec,
                      const State& usual,
                      const State& before,
                      const std::string& after) {
  instance.load(before);
  for (int64_t step = 1; step <= spec.steps; ++step) {
    Batch batch(instance.split(spec.targets), step);
    const int32_t code = instance.step(batch, step, spec.lr(step));
    if (code != YOKE_OK)
      throw Failed(
          concat("after ", after, ", the next step returned ", code_text(code, instance.err)));
  }
  const std::string off = difference(assemble({instance.save()}), usual, 0);
  if (!off.empty())
    throw Failed(concat("after ", after, " and ", spec.steps, " steps, ", off), {"K1", ""});
}

// ---- C17: cancellation ----

// Throws Failed unless a step calls check_cancel at least once for each micro-batch.
void expect_cancel_calls(Instance& instance, const InstrumentedHost& host) {
  const int64_t before = host.cancel_calls;
  Batch batch(instance.split(), 1);
  instance.must(instance.step(batch, 1, 0), "step");
  const auto micros = static_cast<int64_t>(batch.batch().num_micros);
  const int64_t calls = host.cancel_calls - before;
  if (calls < micros && !host.opens_backends)
    throw Failed(concat("a step of ", micros, " micro-batches called check_cancel ", calls) +
                 " times; it must call it at least once for each micro-batch");
}

std::string cancelled_step(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  const RunSpec spec = short_run(subject, b);
  const Trace usual = train(subject, b, spec);
  std::string note;
  on_ranks(subject, b, spec, [&](Instance& instance, TestModel& model) {
    InstrumentedHost& host = instance.instrument_host();
    instance.must(instance.init(), "init");
    instance.must(instance.wrap(model.model()), "wrap_model");
    const State before = assemble({instance.save()});
    expect_cancel_calls(instance, host);
    host.cancelled = true;
    Batch batch(instance.split(), 1);
    const int32_t code = instance.step(batch, 2, spec.lr(2));
    host.cancelled = false;
    if (code == YOKE_OK) {
      note = "it finishes the current step";
    } else if (code != YOKE_CANCELLED) {
      throw Failed(concat("with check_cancel = 1, step returned ",
                          code_text(code, instance.err),
                          ", expected YOKE_CANCELLED or success"));
    }
    expect_usual_run(instance, spec, usual.state, before, "a step that was cancelled");
    instance.destroy_model();
    instance.destroy();
  });
  return note;
}

// ---- C18: the k-th call of a callback fails ----

constexpr double kGarbage = 123;

void poison_results(Instance& instance) {
  instance.result.loss_sum = instance.result.loss_weight = instance.result.grad_norm = kGarbage;
}

void expect_failed_step(Instance& instance, const std::string& what) {
  Batch batch(instance.split(), 1);
  poison_results(instance);
  const int32_t code = instance.step(batch, 1, 0.01);
  if (code != YOKE_RESOURCE_EXHAUSTED)
    throw Failed(what + " with YOKE_RESOURCE_EXHAUSTED, step returned " +
                 code_text(code, instance.err) + "; it must return the same code");
  if (std::string(instance.err.text).find("the check made") == std::string::npos)
    throw Failed(concat(
        what, ", step gave the text '", instance.err.text, "' instead of that of the failure"));
  const YokeStepResult& r = instance.result;
  if (r.loss_sum != 0 || r.loss_weight != 0 || r.grad_norm != 0)
    throw Failed(concat(what,
                        ", step left ",
                        r.loss_sum,
                        ", ",
                        r.loss_weight,
                        " and ",
                        r.grad_norm,
                        " in its results; after a failed call they must be 0"));
}

// The number of calls of each callback in wrap_model and in one step.
struct Calls {
  int64_t wrap[InstrumentedModel::kNumCallbacks], step[InstrumentedModel::kNumCallbacks];
};

Calls count_calls(Subject& subject, const ParallelBackend& b, const RunSpec& spec) {
  Calls calls{};
  on_ranks(subject, b, spec, [&](Instance& instance, TestModel& model) {
    InstrumentedModel& watched = instance.instrument(model.model());
    instance.must(instance.init(), "init");
    instance.must(instance.wrap(watched.model()), "wrap_model");
    std::copy(std::begin(watched.calls), std::end(watched.calls), calls.wrap);
    Batch batch(instance.split(), 1);
    instance.must(instance.step(batch, 1, 0.01), "step");
    for (int c = 0; c < InstrumentedModel::kNumCallbacks; ++c)
      calls.step[c] = watched.calls[c] - calls.wrap[c];
    instance.destroy_model();
    instance.destroy();
  });
  return calls;
}

// Returns the index of the first call, of one in the middle and of the last one, without
// duplicates.
std::vector<int64_t> some_of(int64_t calls) {
  std::vector<int64_t> picked;
  for (const int64_t k : {int64_t{0}, calls / 2, calls - 1})
    if (k >= 0 && k < calls && std::find(picked.begin(), picked.end(), k) == picked.end())
      picked.push_back(k);
  return picked;
}

// Describes the failure of call k (from 0), as the start of a sentence.
std::string nth(InstrumentedModel::Callback callback, int64_t k, const char* where) {
  return concat(
      "when call ", k + 1, " of ", InstrumentedModel::name(callback), " in ", where, " failed");
}

void fail_in_wrap(Instance& instance,
                  const YokeModel& model,
                  InstrumentedModel::Callback callback,
                  int64_t k) {
  InstrumentedModel& watched = instance.instrument(model);
  watched.fail_after[callback] = k;
  const std::string what = nth(callback, k, "wrap_model");
  const int32_t code = instance.wrap(watched.model());
  if (code != YOKE_RESOURCE_EXHAUSTED)
    throw Failed(what + " with YOKE_RESOURCE_EXHAUSTED, wrap_model returned " +
                 code_text(code, instance.err));
  if (instance.wrapped.model != nullptr)
    throw Failed(what + ", wrap_model left a model in its result");
  if (!watched.leaks().empty()) throw Failed(what + ", " + watched.leaks());
}

void fail_in_step(Subject& subject,
                  const ParallelBackend& b,
                  const RunSpec& spec,
                  const State& usual,
                  InstrumentedModel::Callback callback,
                  int64_t k) {
  on_ranks(subject, b, spec, [&](Instance& instance, TestModel& model) {
    InstrumentedModel& watched = instance.instrument(model.model());
    instance.must(instance.init(), "init");
    instance.must(instance.wrap(watched.model()), "wrap_model");
    const State before = assemble({instance.save()});
    watched.fail_after[callback] = k;
    const std::string what = nth(callback, k, "step");
    expect_failed_step(instance, what);
    if (!watched.leaks().empty()) throw Failed(what + ", " + watched.leaks());
    expect_usual_run(instance, spec, usual, before, "a step in which a callback failed");
    instance.destroy_model();
    instance.destroy();
  });
}

std::string failing_callbacks(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  const RunSpec spec = short_run(subject, b);
  const State usual = train(subject, b, spec).state;
  const Calls calls = count_calls(subject, b, spec);
  for (int c = 0; c < InstrumentedModel::kNumCallbacks; ++c) {
    const auto callback = static_cast<InstrumentedModel::Callback>(c);
    on_ranks(subject, b, spec, [&](Instance& instance, TestModel& model) {
      instance.must(instance.init(), "init");
      for (const int64_t k : some_of(calls.wrap[c]))
        fail_in_wrap(instance, model.model(), callback, k);
      instance.must(instance.wrap(model.model()), "wrap_model after one that failed");
      expect_usual_run(instance,
                       spec,
                       usual,
                       assemble({instance.save()}),
                       "a wrap_model in which a callback failed");
      instance.destroy_model();
      instance.destroy();
    });
    for (const int64_t k : some_of(calls.step[c]))
      fail_in_step(subject, b, spec, usual, callback, k);
  }
  return "";
}

// C37: the failure occurs inside a block. Backends that bypass the callbacks run blocks, too.
std::string failing_blocks(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  const RunSpec spec = short_run(subject, b);
  const State usual = train(subject, b, spec).state;
  for (const int64_t k : {0, 1, 4}) {
    on_ranks(subject, b, spec, [&](Instance& instance, TestModel& model) {
      instance.must(instance.init(), "init");
      instance.must(instance.wrap(model.model()), "wrap_model");
      const State before = assemble({instance.save()});
      model.fault_injection().fail_forward = k;
      expect_failed_step(instance, concat("when forward ", k + 1, " of a block failed"));
      expect_usual_run(instance, spec, usual, before, "a step in which a block failed");
      instance.destroy_model();
      instance.destroy();
    });
  }
  return "";
}

constexpr Check kRows[] = {
    {"C17",
     "a step can be cancelled",
     "A step calls check_cancel at least once for each micro-batch. If it returns 1, the step "
     "returns "
     "YOKE_CANCELLED or success. After a LOAD, the next steps give the same bits as a run that was "
     "not cancelled.",
     "call check_cancel before each micro-batch, return YOKE_CANCELLED, and replace the whole "
     "state "
     "on LOAD",
     cancelled_step},
    {"C18",
     "the error of a callback is passed on",
     "The first, middle and last call of init_param, bind_param, block_forward and block_backward "
     "fail, in wrap_model and in step. The backend returns the same code and text, results are 0, "
     "and everything owned is released. After a LOAD, the next steps give the same bits as a run "
     "without a failure.",
     "return the code of a callback at once, drop what is saved, update nothing",
     failing_callbacks},
    {"C37",
     "the error of a block is passed on",
     "The forward of a block fails inside the model, for LibTorch blocks as well. step returns the "
     "code and the text of that error, and results are 0. After a LOAD, the next steps give the "
     "same bits as a run without a failure.",
     "catch what the block throws, drop its graph, update nothing",
     failing_blocks},
};

}  // namespace

void add_failure_checks(std::vector<Check>& table) {
  table.insert(table.end(), std::begin(kRows), std::end(kRows));
}

}  // namespace yoke::conformance
