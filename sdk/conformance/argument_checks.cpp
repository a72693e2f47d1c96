// C, first part: what crosses the border, given wrongly, larger or with company.
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

YokeStepArgs step_args(const YokeBatch* batch) {
  YokeStepArgs args{};
  args.header = YOKE_HEADER(YokeStepArgs, YOKE_ID_STEP_ARGS);
  args.batch = batch;
  args.step = 1;
  args.lr = 0.01;
  return args;
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

// ---- C3, C4, C5, C15: sizes

constexpr unsigned char kPoison = 0xa5;
constexpr size_t kTail = 64;

// A struct with memory behind it that is not part of it, or part of a version that we do not know.
template <class T>
struct Guarded {
  T known;
  unsigned char tail[kTail];

  explicit Guarded(const T& value) : known(value) { std::memset(tail, kPoison, kTail); }
  void grow() { known.header.struct_size = sizeof(Guarded); }
  void expect_untouched(const char* name) const {
    for (size_t i = 0; i < kTail; ++i) {
      if (tail[i] != kPoison)
        throw Failed(std::string("byte ") + std::to_string(i) + " behind the caller's " + name +
                     " was written; a writer writes at most header.struct_size bytes");
    }
  }
};

template <class T>
void expect_header(const T& value, uint32_t id, const char* name) {
  if (value.header.struct_size == sizeof(T) && value.header.struct_id == id) return;
  throw Failed(std::string("the header of the caller's ") + name + " was overwritten");
}

std::string keeps_to_the_size(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  on_ranks(subject, b, one_rank(), [&](Life& life, StageModel& model) {
    Guarded<YokeError> err(make_error());
    b.describe(nullptr, &err.known);
    err.expect_untouched("YokeError");
    life.must(life.init(), "init");
    Guarded<YokeWrapResult> wrapped(life.wrapped);
    life.must(
        border(
            "wrap_model",
            [&] { return b.wrap_model(life.context, &model.model(), &wrapped.known, &err.known); }),
        "wrap_model");
    life.wrapped = wrapped.known;
    wrapped.expect_untouched("YokeWrapResult");
    expect_header(wrapped.known, YOKE_ID_WRAP_RESULT, "YokeWrapResult");
    Batch batch(life.split(false), 1);
    const YokeStepArgs args = step_args(&batch.batch());
    Guarded<YokeStepResult> result(life.result);
    life.must(border("step",
                     [&] { return b.step(life.wrapped.model, &args, &result.known, &err.known); }),
              "step");
    result.expect_untouched("YokeStepResult");
    expect_header(result.known, YOKE_ID_STEP_RESULT, "YokeStepResult");
    err.expect_untouched("YokeError");
  });
  return "";
}

// An error struct whose text has room for so many bytes.
std::string short_texts(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  for (const size_t room : {0, 1, 16}) {
    YokeError err = make_error();
    std::memset(err.text, kPoison, sizeof err.text);
    err.header.struct_size = static_cast<uint32_t>(offsetof(YokeError, text) + room);
    const int32_t code = border("plan", [&] { return b.plan(nullptr, nullptr, &err); });
    if (code == YOKE_OK) throw Failed("plan(NULL, NULL) succeeded");
    for (size_t i = room; i < sizeof err.text; ++i) {
      if (static_cast<unsigned char>(err.text[i]) != kPoison)
        throw Failed("an error text with room for " + std::to_string(room) +
                     " bytes was written at byte " + std::to_string(i));
    }
    if (room > 0 && std::memchr(err.text, 0, room) == nullptr)
      throw Failed("an error text with room for " + std::to_string(room) + " bytes has no 0 in it");
  }
  return "";
}

// Two steps with every argument passed on by `through`, which may change its size or its chain.
template <class Through>
State two_steps(Subject& subject, const ParallelBackend& b, Through&& through) {
  State state;
  Planned planned(subject, b, one_rank());
  auto plan_args = through(planned.args);
  auto plan = through(planned.plan);
  const int32_t code =
      border("plan", [&] { return b.plan(&plan_args.known, &plan.known, nullptr); });
  if (code != YOKE_OK) throw Failed("plan refuses it, with code " + std::to_string(code));
  for (int32_t& degree : plan.known.degree) degree = 1;
  plan.known.reduce_dtype = YOKE_F64;
  plan.known.micro_batch = kGlobalBatch;
  auto optimizer = through(planned.optimizer);
  plan.known.optimizer = &optimizer.known;
  on_ranks(subject, b, one_rank(), [&](Life& life, StageModel& model) {
    auto host = through(*life.host);
    auto args = through(life.init_args);
    args.known.plan = &plan.known;
    args.known.host = &host.known;
    life.must(border("init", [&] { return b.init(&args.known, &life.context, &life.err); }),
              "init");
    auto wide = through(model.model());
    life.must(life.wrap(wide.known), "wrap_model");
    for (const int64_t step : {1, 2}) {
      Batch batch(life.split(false), step);
      auto contents = through(batch.batch());
      auto step_with = through(step_args(&contents.known));
      step_with.known.step = step;
      life.must(border("step",
                       [&] {
                         return b.step(
                             life.wrapped.model, &step_with.known, &life.result, &life.err);
                       }),
                "step");
    }
    state = assemble({life.save()});
    life.destroy_model();
    life.destroy();
  });
  return state;
}

State plainly(Subject& subject, const ParallelBackend& b) {
  return two_steps(
      subject, b, [](const auto& value) { return Guarded<std::decay_t<decltype(value)>>(value); });
}

std::string later_versions(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  const State larger = two_steps(subject, b, [](const auto& value) {
    Guarded<std::decay_t<decltype(value)>> guarded(value);
    guarded.grow();
    return guarded;
  });
  const std::string off = difference(larger, plainly(subject, b), 0);
  if (!off.empty()) throw Failed("with arguments that are larger than it knows, " + off);
  return "";
}

std::string unknown_extensions(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  struct Chained {
    explicit Chained() { std::memset(contents, kPoison, sizeof contents); }
    YokeHeader header{};
    unsigned char contents[kTail];
  };
  std::vector<std::unique_ptr<Chained>> nodes;
  const State chained = two_steps(subject, b, [&](const auto& value) {
    Guarded<std::decay_t<decltype(value)>> guarded(value);
    nodes.push_back(std::make_unique<Chained>());
    nodes.back()->header = {sizeof(Chained), 0x7fff, value.header.next};
    guarded.known.header.next = &nodes.back()->header;
    return guarded;
  });
  const std::string off = difference(chained, plainly(subject, b), 0);
  if (!off.empty()) throw Failed("with unknown structs on the chains, " + off);
  return "";
}

}  // namespace

void add_argument_checks(std::vector<Check>& table) {
  const auto add = [&](const char* id,
                       const char* title,
                       const char* requirement,
                       const char* fix,
                       std::string (*live)(Subject&)) {
    table.push_back({id, title, requirement, Fault::kPlugin, fix, nullptr, live});
  };
  add("C1",
      "NULL is refused",
      "Every pointer argument of plan, init, wrap_model, step and checkpoint is NULL once, the "
      "others "
      "right: YOKE_INVALID_ARGUMENT with a text, also with err NULL; a step works afterwards.",
      "check every pointer before it is used (REQUIRE in sdk/examples/serial.c)",
      null_arguments);
  add("C3",
      "later versions of arguments are welcome",
      "Every argument struct is 64 bytes longer than version 1.0 and the tail is garbage: two "
      "steps "
      "give the same bits.",
      "test struct_size with >=, never ==, and copy at most the bytes that you know",
      later_versions);
  add("C4",
      "results keep to the caller's size",
      "The bytes behind YokeWrapResult, YokeStepResult and YokeError, and their headers, are as "
      "they "
      "were after the call.",
      "write results field by field, or through write_result of yoke/backend.hpp",
      keeps_to_the_size);
  add("C5",
      "unknown extensions are skipped",
      "A struct with an unknown struct_id stands on the chain of every argument: two steps give "
      "the "
      "same bits.",
      "walk header.next by struct_id and pass by what you do not know",
      unknown_extensions);
  add("C6",
      "a wrong struct is refused",
      "Every argument struct has a wrong struct_id once: YOKE_INVALID_ARGUMENT with a text.",
      "compare header.struct_id before anything else of the struct is read",
      wrong_structs);
  add("C12",
      "calls before their time are refused",
      "wrap_model, step and checkpoint with a NULL handle: YOKE_FAILED_PRECONDITION with a text.",
      "check the handle first",
      before_its_time);
  add("C13",
      "destroying nothing is fine",
      "destroy_model and destroy take NULL and a pointer to NULL, and set the pointer to NULL.",
      "return early for NULL, and write *pointer = NULL at the end",
      destroy_forgives);
  add("C15",
      "short error buffers are respected",
      "With room for 0, 1 and 16 bytes of text: nothing behind is written, and the text ends in 0.",
      "cut the text to err->header.struct_size - offsetof(YokeError, text)",
      short_texts);
}

}  // namespace yoke::conformance
