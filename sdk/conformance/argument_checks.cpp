// Checks C1, C6, C12 and C13: wrong arguments and wrong handles.
//
// C1 and C6 share their code, because they visit the same arguments: an argument is NULL in one
// check, and a struct with a wrong struct_id in the other. Every call has exactly one wrong
// argument, so the text of a failure names it.
#include <cstring>
#include <functional>

#include "sdk/conformance/level.hpp"
#include "sdk/conformance/library.hpp"
#include "sdk/conformance/progress.hpp"
#include "sdk/conformance/run.hpp"
#include "yoke/text.hpp"

namespace yoke::conformance {
namespace {

// Makes the call with and without an error struct. Throws Failed unless both calls return the
// expected code, and the first one a text.
void expect_refusal(const std::string& what,
                    const char* slot,
                    int32_t expected,
                    const std::function<int32_t(YokeError*)>& call) {
  YokeError err = make_error();
  const int32_t code = call_backend(slot, [&] { return call(&err); });
  if (code != expected) {
    const char* name =
        expected == YOKE_INVALID_ARGUMENT ? "YOKE_INVALID_ARGUMENT" : "YOKE_FAILED_PRECONDITION";
    throw Failed(
        concat(what, ": ", slot, " returned ", code, ", expected ", expected, " (", name, ")"));
  }
  if (err.text[0] == '\0') throw Failed(concat(what, ": ", slot, " refused it without a text"));
  const int32_t again = call_backend(slot, [&] { return call(nullptr); });
  if (again != expected)
    throw Failed(
        concat(what, ", and err is NULL: ", slot, " returned ", again, ", expected ", expected));
}

YokeCheckpointArgs describe_args() {
  YokeCheckpointArgs args{};
  args.header = YOKE_HEADER(YokeCheckpointArgs, YOKE_ID_CHECKPOINT_ARGS);
  args.op = YOKE_CHECKPOINT_DESCRIBE;
  args.visit = [](void*, const YokePiece*, YokeError*) -> int32_t { return YOKE_OK; };
  return args;
}

// Trains one step, to see that the handles still work after the refusals.
void expect_a_step(Instance& instance) {
  Batch batch(instance.split(), 1);
  instance.must(instance.step(batch, 1, 0.01), "step");
}

// ---- C1 and C6: wrong arguments, one at a time ----

// Makes a wrong argument from a valid one.
struct BadArgument {
  bool null;  // true: returns NULL; false: returns a copy with a wrong struct_id
  template <class T>
  const T* operator()(T copy) const {
    if (null) return nullptr;
    kept.emplace_back(sizeof(T));
    copy.header.struct_id = 999;
    std::memcpy(kept.back().data(), &copy, sizeof(T));
    return reinterpret_cast<const T*>(kept.back().data());
  }
  mutable std::vector<std::vector<char>> kept;  // memory of the copies
};

void check_plan(Subject& subject,
                const ParallelBackend& b,
                const BadArgument& bad,
                const char* is) {
  Planned planned(subject, b, basic_run(subject, b));
  const auto refuse = [&](const char* what, auto&& call) {
    expect_refusal(std::string(what) + is, "plan", YOKE_INVALID_ARGUMENT, call);
  };
  refuse("args", [&](YokeError* e) { return b.plan(bad(planned.args), &planned.plan, e); });
  refuse("plan", [&](YokeError* e) {
    return b.plan(&planned.args, const_cast<YokePlan*>(bad(planned.plan)), e);
  });
}

void check_init(Instance& instance, const BadArgument& bad, const char* is) {
  const ParallelBackend& b = instance.backend;
  YokeContext* context = nullptr;
  const auto refuse = [&](const char* what, auto&& call) {
    expect_refusal(std::string(what) + is, "init", YOKE_INVALID_ARGUMENT, call);
  };
  const YokeInitArgs good = instance.init_args;
  refuse("args", [&](YokeError* e) { return b.init(bad(good), &context, e); });
  refuse("args->plan", [&](YokeError* e) {
    YokeInitArgs args = good;
    args.plan = bad(*good.plan);
    return b.init(&args, &context, e);
  });
  refuse("args->host", [&](YokeError* e) {
    YokeInitArgs args = good;
    args.host = bad(*good.host);
    return b.init(&args, &context, e);
  });
  if (bad.null) refuse("out", [&](YokeError* e) { return b.init(&good, nullptr, e); });
  if (context != nullptr) throw Failed("init refused its arguments, but set *out");
}

void check_wrap(Instance& instance,
                const YokeModel& model,
                const BadArgument& bad,
                const char* is) {
  const ParallelBackend& b = instance.backend;
  const auto refuse = [&](const char* what, auto&& call) {
    expect_refusal(std::string(what) + is, "wrap_model", YOKE_INVALID_ARGUMENT, call);
  };
  refuse("model", [&](YokeError* e) {
    return b.wrap_model(instance.context, bad(model), &instance.wrapped, e);
  });
  refuse("out", [&](YokeError* e) {
    return b.wrap_model(
        instance.context, &model, const_cast<YokeWrapResult*>(bad(instance.wrapped)), e);
  });
}

void check_step(Instance& instance, const BadArgument& bad, const char* is) {
  const ParallelBackend& b = instance.backend;
  Batch batch(instance.split(), 1);
  const auto refuse = [&](const char* what, auto&& call) {
    expect_refusal(std::string(what) + is, "step", YOKE_INVALID_ARGUMENT, call);
  };
  const YokeStepArgs good = step_args(&batch.batch());
  YokeWrapped* model = instance.wrapped.model;
  refuse("args", [&](YokeError* e) { return b.step(model, bad(good), &instance.result, e); });
  refuse("args->batch", [&](YokeError* e) {
    YokeStepArgs args = good;
    args.batch = bad(batch.batch());
    return b.step(model, &args, &instance.result, e);
  });
  refuse("out", [&](YokeError* e) {
    return b.step(model, &good, const_cast<YokeStepResult*>(bad(instance.result)), e);
  });
}

std::string refuses_bad_arguments(Subject& subject, bool null) {
  const ParallelBackend& backend = load_table(subject.path);
  const BadArgument bad{null, {}};
  const char* is = null ? " is NULL" : " has a wrong struct_id";
  check_plan(subject, backend, bad, is);
  on_ranks(
      subject, backend, basic_run(subject, backend), [&](Instance& instance, TestModel& model) {
        check_init(instance, bad, is);
        instance.must(instance.init(), "init");
        check_wrap(instance, model.model(), bad, is);
        instance.must(instance.wrap(model.model()), "wrap_model");
        check_step(instance, bad, is);
        expect_refusal(
            std::string("args") + is, "checkpoint", YOKE_INVALID_ARGUMENT, [&](YokeError* e) {
              return backend.checkpoint(instance.wrapped.model, bad(describe_args()), e);
            });
        expect_a_step(instance);
      });
  return "";
}

std::string null_arguments(Subject& subject) {
  return refuses_bad_arguments(subject, true);
}
std::string wrong_structs(Subject& subject) {
  return refuses_bad_arguments(subject, false);
}

// ---- C12 and C13: handles ----

std::string calls_out_of_order(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  on_ranks(subject, b, basic_run(subject, b), [&](Instance& instance, TestModel& model) {
    expect_refusal("no context", "wrap_model", YOKE_FAILED_PRECONDITION, [&](YokeError* e) {
      return b.wrap_model(nullptr, &model.model(), &instance.wrapped, e);
    });
    Batch batch({kGlobalBatch, kGlobalBatch}, 1);
    const YokeStepArgs args = step_args(&batch.batch());
    expect_refusal("no model", "step", YOKE_FAILED_PRECONDITION, [&](YokeError* e) {
      return b.step(nullptr, &args, &instance.result, e);
    });
    const YokeCheckpointArgs walk = describe_args();
    expect_refusal("no model", "checkpoint", YOKE_FAILED_PRECONDITION, [&](YokeError* e) {
      return b.checkpoint(nullptr, &walk, e);
    });
  });
  return "";
}

std::string destroy_accepts_null(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  on_ranks(subject, b, basic_run(subject, b), [&](Instance& instance, TestModel& model) {
    call_backend("destroy_model", [&] { b.destroy_model(nullptr); });
    call_backend("destroy", [&] { b.destroy(nullptr); });
    instance.destroy_model();  // handles that are still NULL
    instance.destroy();
    instance.must(instance.init(), "init");
    instance.must(instance.wrap(model.model()), "wrap_model");
    instance.destroy_model();
    if (instance.wrapped.model != nullptr)
      throw Failed("destroy_model did not set the pointer to NULL");
    instance.destroy_model();
    instance.destroy();
    if (instance.context != nullptr) throw Failed("destroy did not set the pointer to NULL");
    instance.destroy();
  });
  return "";
}

constexpr Check kRows[] = {
    {"C1",
     "NULL is refused",
     "Each pointer argument of plan, init, wrap_model, step and checkpoint is NULL in one call, "
     "with all others valid. The call returns YOKE_INVALID_ARGUMENT with a text, and the same code "
     "if err is NULL. A step works afterwards.",
     "check every pointer before you use it, for example with YOKE_REQUIRE of yoke/author.h",
     null_arguments},
    {"C6",
     "structs of the wrong type are refused",
     "Each argument struct has a wrong struct_id in one call, which returns YOKE_INVALID_ARGUMENT "
     "with a text.",
     "compare header.struct_id before you read any other field of the struct",
     wrong_structs},
    {"C12",
     "calls without a handle are refused",
     "wrap_model, step and checkpoint with a NULL handle return YOKE_FAILED_PRECONDITION with a "
     "text.",
     "check the handle first",
     calls_out_of_order},
    {"C13",
     "destroying nothing is allowed",
     "destroy_model and destroy accept NULL and a pointer to NULL. They set the pointer of a "
     "destroyed object to NULL.",
     "return early for NULL, and write *pointer = NULL at the end",
     destroy_accepts_null},
};

}  // namespace

void add_argument_checks(std::vector<Check>& table) {
  table.insert(table.end(), std::begin(kRows), std::end(kRows));
}

}  // namespace yoke::conformance
