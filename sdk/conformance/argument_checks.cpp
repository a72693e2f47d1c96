// C, first part: arguments and handles, given wrongly.
#include <cstring>
#include <functional>

#include "sdk/conformance/level.hpp"
#include "sdk/conformance/library.hpp"
#include "sdk/conformance/progress.hpp"
#include "sdk/conformance/run.hpp"

namespace yoke::conformance {
namespace {

RunSpec one_rank() {
  return {};
}

// A refusal, with and without somebody who wants to know why.
void expect_refusal(const std::string& what,
                    const char* slot,
                    int32_t expected,
                    const std::function<int32_t(YokeError*)>& call) {
  YokeError err = make_error();
  const int32_t code = border(slot, [&] { return call(&err); });
  if (code != expected) {
    throw Failed(what + ": " + slot + " returned " + std::to_string(code) + ", expected " +
                 std::to_string(expected) +
                 (expected == YOKE_INVALID_ARGUMENT ? " (YOKE_INVALID_ARGUMENT)"
                                                    : " (YOKE_FAILED_PRECONDITION)"));
  }
  if (err.text[0] == '\0') throw Failed(what + ": " + slot + " refused it without a text");
  const int32_t again = border(slot, [&] { return call(nullptr); });
  if (again != expected)
    throw Failed(what + ", and err NULL: " + slot + " returned " + std::to_string(again));
}

YokeCheckpointArgs describe_args() {
  YokeCheckpointArgs args{};
  args.header = YOKE_HEADER(YokeCheckpointArgs, YOKE_ID_CHECKPOINT_ARGS);
  args.op = YOKE_CHECKPOINT_DESCRIBE;
  args.visit = [](void*, const YokePiece*, YokeError*) -> int32_t { return YOKE_OK; };
  return args;
}

// After all refusals the handles must still be good for a step.
void expect_a_step(Life& life) {
  Batch batch(life.split(false), 1);
  life.must(life.step(batch, 1, 0.01), "step");
}

// ---- C1, C6: one argument after the other is wrong. `spoil` makes a pointer of the wrong one.

struct Spoilt {
  bool null;  // NULL; else the right struct with a wrong struct_id
  template <class T>
  const T* operator()(T copy) const {
    if (null) return nullptr;
    kept.emplace_back(sizeof(T));
    copy.header.struct_id = 999;
    std::memcpy(kept.back().data(), &copy, sizeof(T));
    return reinterpret_cast<const T*>(kept.back().data());
  }
  mutable std::vector<std::vector<char>> kept;
};

void spoil_plan(Subject& subject, const ParallelBackend& b, const Spoilt& spoilt, const char* is) {
  Planned planned(subject, b, one_rank());
  const auto refuse = [&](const char* what, auto&& call) {
    expect_refusal(std::string(what) + is, "plan", YOKE_INVALID_ARGUMENT, call);
  };
  refuse("args", [&](YokeError* e) { return b.plan(spoilt(planned.args), &planned.plan, e); });
  refuse("plan", [&](YokeError* e) {
    return b.plan(&planned.args, const_cast<YokePlan*>(spoilt(planned.plan)), e);
  });
}

void spoil_init(Life& life, const Spoilt& spoilt, const char* is) {
  const ParallelBackend& b = life.backend;
  YokeContext* context = nullptr;
  const auto refuse = [&](const char* what, auto&& call) {
    expect_refusal(std::string(what) + is, "init", YOKE_INVALID_ARGUMENT, call);
  };
  const YokeInitArgs good = life.init_args;
  refuse("args", [&](YokeError* e) { return b.init(spoilt(good), &context, e); });
  refuse("args->plan", [&](YokeError* e) {
    YokeInitArgs args = good;
    args.plan = spoilt(*good.plan);
    return b.init(&args, &context, e);
  });
  refuse("args->host", [&](YokeError* e) {
    YokeInitArgs args = good;
    args.host = spoilt(*good.host);
    return b.init(&args, &context, e);
  });
  if (spoilt.null) refuse("out", [&](YokeError* e) { return b.init(&good, nullptr, e); });
  if (context != nullptr) throw Failed("a refused init set *out");
}

void spoil_wrap(Life& life, const YokeModel& model, const Spoilt& spoilt, const char* is) {
  const ParallelBackend& b = life.backend;
  const auto refuse = [&](const char* what, auto&& call) {
    expect_refusal(std::string(what) + is, "wrap_model", YOKE_INVALID_ARGUMENT, call);
  };
  refuse("model",
         [&](YokeError* e) { return b.wrap_model(life.context, spoilt(model), &life.wrapped, e); });
  refuse("out", [&](YokeError* e) {
    return b.wrap_model(life.context, &model, const_cast<YokeWrapResult*>(spoilt(life.wrapped)), e);
  });
}

void spoil_step(Life& life, const Spoilt& spoilt, const char* is) {
  const ParallelBackend& b = life.backend;
  Batch batch(life.split(false), 1);
  const auto refuse = [&](const char* what, auto&& call) {
    expect_refusal(std::string(what) + is, "step", YOKE_INVALID_ARGUMENT, call);
  };
  const YokeStepArgs good = step_args(&batch.batch());
  YokeWrapped* model = life.wrapped.model;
  refuse("args", [&](YokeError* e) { return b.step(model, spoilt(good), &life.result, e); });
  refuse("args->batch", [&](YokeError* e) {
    YokeStepArgs args = good;
    args.batch = spoilt(batch.batch());
    return b.step(model, &args, &life.result, e);
  });
  refuse("out", [&](YokeError* e) {
    return b.step(model, &good, const_cast<YokeStepResult*>(spoilt(life.result)), e);
  });
}

std::string refuses_spoilt(Subject& subject, bool null) {
  const ParallelBackend& backend = load_table(subject.path);
  const Spoilt spoilt{null, {}};
  const char* is = null ? " is NULL" : " has a wrong struct_id";
  spoil_plan(subject, backend, spoilt, is);
  on_ranks(subject, backend, one_rank(), [&](Life& life, StageModel& model) {
    spoil_init(life, spoilt, is);
    life.must(life.init(), "init");
    spoil_wrap(life, model.model(), spoilt, is);
    life.must(life.wrap(model.model()), "wrap_model");
    spoil_step(life, spoilt, is);
    expect_refusal(
        std::string("args") + is, "checkpoint", YOKE_INVALID_ARGUMENT, [&](YokeError* e) {
          return backend.checkpoint(life.wrapped.model, spoilt(describe_args()), e);
        });
    expect_a_step(life);
  });
  return "";
}

std::string null_arguments(Subject& subject) {
  return refuses_spoilt(subject, true);
}
std::string wrong_structs(Subject& subject) {
  return refuses_spoilt(subject, false);
}

// ---- C12, C13: handles

std::string before_its_time(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  on_ranks(subject, b, one_rank(), [&](Life& life, StageModel& model) {
    expect_refusal("no context", "wrap_model", YOKE_FAILED_PRECONDITION, [&](YokeError* e) {
      return b.wrap_model(nullptr, &model.model(), &life.wrapped, e);
    });
    Batch batch({kGlobalBatch, kGlobalBatch, 0, 1, false}, 1);
    const YokeStepArgs args = step_args(&batch.batch());
    expect_refusal("no model", "step", YOKE_FAILED_PRECONDITION, [&](YokeError* e) {
      return b.step(nullptr, &args, &life.result, e);
    });
    const YokeCheckpointArgs walk = describe_args();
    expect_refusal("no model", "checkpoint", YOKE_FAILED_PRECONDITION, [&](YokeError* e) {
      return b.checkpoint(nullptr, &walk, e);
    });
  });
  return "";
}

std::string destroy_forgives(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  on_ranks(subject, b, one_rank(), [&](Life& life, StageModel& model) {
    border("destroy_model", [&] { b.destroy_model(nullptr); });
    border("destroy", [&] { b.destroy(nullptr); });
    life.destroy_model();  // pointers to NULL
    life.destroy();
    life.must(life.init(), "init");
    life.must(life.wrap(model.model()), "wrap_model");
    life.destroy_model();
    if (life.wrapped.model != nullptr) throw Failed("destroy_model left the pointer as it was");
    life.destroy_model();
    life.destroy();
    if (life.context != nullptr) throw Failed("destroy left the pointer as it was");
    life.destroy();
  });
  return "";
}

constexpr Check kRows[] = {
    {"C1",
     "NULL is refused",
     "Every pointer argument of plan, init, wrap_model, step and checkpoint is NULL once, the "
     "others right: YOKE_INVALID_ARGUMENT with a text, also with err NULL; a step works "
     "afterwards.",
     "check every pointer before it is used (REQUIRE in sdk/examples/serial.c)",
     null_arguments},
    {"C6",
     "a wrong struct is refused",
     "Every argument struct has a wrong struct_id once: YOKE_INVALID_ARGUMENT with a text.",
     "compare header.struct_id before anything else of the struct is read",
     wrong_structs},
    {"C12",
     "calls before their time are refused",
     "wrap_model, step and checkpoint with a NULL handle: YOKE_FAILED_PRECONDITION with a text.",
     "check the handle first",
     before_its_time},
    {"C13",
     "destroying nothing is fine",
     "destroy_model and destroy take NULL and a pointer to NULL, and set the pointer to NULL.",
     "return early for NULL, and write *pointer = NULL at the end",
     destroy_forgives},
};

}  // namespace

void add_argument_checks(std::vector<Check>& table) {
  table.insert(table.end(), std::begin(kRows), std::end(kRows));
}

}  // namespace yoke::conformance
