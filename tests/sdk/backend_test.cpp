// Tests the C++ layer for authors (yoke/backend.hpp): what crosses the ABI boundary when a backend
// throws, and which calls are refused before the backend is called at all.
#include "yoke/backend.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/mock_batch.hpp"
#include "tests/support/mock_host.hpp"
#include "tests/support/mock_model.hpp"

namespace yoke::testing {
namespace {

using ::testing::HasSubstr;

// A test sets this function, and overrides of the toy backend call it. Tests run one at a time.
std::function<void()> act;
int live_contexts = 0, live_models = 0;

struct ToyWrapped : Wrapped {
  ToyWrapped() { ++live_models; }
  ~ToyWrapped() override { --live_models; }
  YokeWrapResult wrap_result() const override {
    YokeWrapResult r{};
    r.header = YOKE_HEADER(YokeWrapResult, YOKE_ID_WRAP_RESULT);
    r.param_bytes = 10;
    r.grad_bytes = 20;
    r.optimizer_bytes = 30;
    return r;
  }
  YokeStepResult step(const YokeStepArgs&) override {
    act();
    YokeStepResult r{};
    r.loss_sum = 1;
    r.loss_weight = 2;
    r.grad_norm = 3;
    return r;
  }
  void checkpoint(const YokeCheckpointArgs&) override { act(); }
};

struct ToyContext : Context {
  ToyContext() { ++live_contexts; }
  ~ToyContext() override { --live_contexts; }
  std::unique_ptr<Wrapped> wrap_model(const YokeModel&) override {
    act();
    return std::make_unique<ToyWrapped>();
  }
};

struct ToyBackend : Backend {
  const YokeDescription& describe() const override {
    static const YokeDescription description{};
    act();
    return description;
  }
  void plan(const YokePlanArgs&, YokePlan& plan, PlanReport& report) const override {
    act();
    if (plan.world_size == 3) report.refuse("dp_degree", "3", "1 | 2", "start 2 ranks");
    if (plan.world_size == 4) report.note("dp_degree", "4", "slow");
  }
  std::unique_ptr<Context> init(const YokeInitArgs&) const override {
    act();
    return std::make_unique<ToyContext>();
  }
};

const ParallelBackend& toy = detail::Table<ToyBackend>::kTable;

class BackendTable : public ::testing::Test {
 protected:
  void SetUp() override {
    act = [] {};
  }
  YokeInitArgs init_args() {
    return {YOKE_HEADER(YokeInitArgs, YOKE_ID_INIT_ARGS), &plan.plan, nullptr, 0, &host.host};
  }
  YokePlanArgs plan_args() {
    YokePlanArgs args{};
    args.header = YOKE_HEADER(YokePlanArgs, YOKE_ID_PLAN_ARGS);
    args.model = &model.summary();
    args.refuse = [](void*, const YokeRefusal*) {};
    return args;
  }
  void open() {
    const YokeInitArgs args = init_args();
    ASSERT_EQ(toy.init(&args, &context, &err), YOKE_OK) << err.text;
    result.header = YOKE_HEADER(YokeWrapResult, YOKE_ID_WRAP_RESULT);
    ASSERT_EQ(toy.wrap_model(context, &model.model(), &result, &err), YOKE_OK) << err.text;
    wrapped = result.model;
  }
  void TearDown() override {
    toy.destroy_model(&wrapped);
    toy.destroy(&context);
    EXPECT_EQ(wrapped, nullptr);
    EXPECT_EQ(context, nullptr);
    EXPECT_EQ(live_models, 0);
    EXPECT_EQ(live_contexts, 0);
  }

  MockModel model;
  MockHost host;
  MockPlan plan;
  YokeError err = make_error();
  YokeContext* context = nullptr;
  YokeWrapResult result{};
  YokeWrapped* wrapped = nullptr;
};

TEST_F(BackendTable, AFailedCallLeavesItsOutputZeroButForTheHeader) {
  open();
  YokeStepResult out{};
  out.header = YOKE_HEADER(YokeStepResult, YOKE_ID_STEP_RESULT);
  out.loss_sum = out.loss_weight = out.grad_norm = 7;
  EXPECT_NE(toy.step(wrapped, nullptr, &out, &err), YOKE_OK);
  EXPECT_EQ(out.header.struct_size, sizeof out);
  EXPECT_EQ(out.loss_sum, 0);
  EXPECT_EQ(out.grad_norm, 0);
  result.param_bytes = 7;
  EXPECT_NE(toy.wrap_model(nullptr, &model.model(), &result, &err), YOKE_OK);
  EXPECT_EQ(result.model, nullptr);
  EXPECT_EQ(result.param_bytes, 0);
  // A struct with a different struct_id is left alone.
  out.header.struct_id = YOKE_ID_BATCH;
  out.loss_sum = 7;
  EXPECT_NE(toy.step(wrapped, nullptr, &out, &err), YOKE_OK);
  EXPECT_EQ(out.loss_sum, 7);
}

TEST(NormOfAStep, ForbidsTheUpdateUnlessItIsFinite) {
  EXPECT_EQ(gradient_norm(9), 3);
  EXPECT_TRUE(std::isinf(gradient_norm(std::numeric_limits<double>::quiet_NaN())));
  EXPECT_TRUE(std::isinf(gradient_norm(std::numeric_limits<double>::infinity())));
  EXPECT_EQ(clip_scale(0, 1e9), 1) << "0 = no clipping";
  EXPECT_EQ(clip_scale(1, 0.5), 1);
  EXPECT_DOUBLE_EQ(clip_scale(1, 4), 1 / (4 + 1e-6));
}

// ---- Exceptions ----

struct Thrown {
  const char* name;
  void (*throw_it)();
  int32_t code;
  const char* text;
};

class BackendException : public BackendTable, public ::testing::WithParamInterface<Thrown> {};

TEST_P(BackendException, BecomesACodeAndATextInEverySlot) {
  const Thrown& thrown = GetParam();
  open();
  act = thrown.throw_it;
  const YokeDescription* description;
  const YokePlanArgs p = plan_args();
  const YokeInitArgs i = init_args();
  YokeContext* other = context;
  YokeWrapResult other_model = result;
  const MockBatch batch({}, 1);
  const YokeStepArgs s = {
      YOKE_HEADER(YokeStepArgs, YOKE_ID_STEP_ARGS), &batch.batch(), 1, 0.1, 0, 0, 0};
  YokeStepResult r{};
  r.header = YOKE_HEADER(YokeStepResult, YOKE_ID_STEP_RESULT);
  YokeCheckpointArgs c{};
  c.header = YOKE_HEADER(YokeCheckpointArgs, YOKE_ID_CHECKPOINT_ARGS);
  c.op = YOKE_CHECKPOINT_SAVE;
  const std::pair<const char*, std::function<int32_t(YokeError*)>> slots[] = {
      {"describe", [&](YokeError* e) { return toy.describe(&description, e); }},
      {"plan", [&](YokeError* e) { return toy.plan(&p, &plan.plan, e); }},
      {"init", [&](YokeError* e) { return toy.init(&i, &other, e); }},
      {"wrap_model",
       [&](YokeError* e) { return toy.wrap_model(context, &model.model(), &other_model, e); }},
      {"step", [&](YokeError* e) { return toy.step(wrapped, &s, &r, e); }},
      {"checkpoint", [&](YokeError* e) { return toy.checkpoint(wrapped, &c, e); }}};
  for (const auto& [name, call] : slots) {
    err = make_error();
    EXPECT_EQ(call(&err), thrown.code) << name;
    EXPECT_EQ(err.code, thrown.code) << name;
    EXPECT_STREQ(err.text, thrown.text) << name;
    EXPECT_EQ(call(nullptr), thrown.code) << name << " without an error to fill";
  }
  EXPECT_EQ(other, nullptr) << "init must not leave a stale handle in its output";
  EXPECT_EQ(r.loss_sum, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds,
    BackendException,
    ::testing::Values(
        Thrown{"error",
               [] { throw Error(YOKE_UNAVAILABLE, "rank 3 is lost", 3, 17); },
               YOKE_UNAVAILABLE,
               "rank 3 is lost"},
        Thrown{
            "bad_alloc", [] { throw std::bad_alloc(); }, YOKE_RESOURCE_EXHAUSTED, "out of memory"},
        Thrown{"standard", [] { throw std::runtime_error("odd"); }, YOKE_INTERNAL, "odd"},
        Thrown{"with_backtrace",
               [] { throw std::runtime_error("odd\nException raised from f at x.cpp:1"); },
               YOKE_INTERNAL,
               "odd"},
        Thrown{"foreign",
               [] { throw 42; },
               YOKE_UNKNOWN,
               "an exception that is not a std::exception"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_F(BackendTable, AnErrorCarriesRankAndStep) {
  act = [] { throw Error(YOKE_UNAVAILABLE, "rank 3 is lost", 3, 17); };
  const YokeInitArgs args = init_args();
  toy.init(&args, &context, &err);
  EXPECT_EQ(err.rank, 3);
  EXPECT_EQ(err.step, 17);
}

// ---- Results ----

TEST(WriteResult, WritesNoByteBehindTheCallersStruct) {
  for (uint32_t size : {16u, 24u, 32u, 40u, 64u}) {
    alignas(YokeStepResult) unsigned char memory[64];
    std::memset(memory, 0xAB, sizeof memory);
    auto* out = reinterpret_cast<YokeStepResult*>(memory);
    out->header = {size, YOKE_ID_STEP_RESULT, nullptr};
    YokeStepResult value{};
    value.header = YOKE_HEADER(YokeStepResult, YOKE_ID_STEP_RESULT);
    value.loss_sum = 1;
    value.loss_weight = 2;
    value.grad_norm = 3;
    write_result(out, value);
    EXPECT_EQ(out->header.struct_size, size) << "the caller's size stays";
    for (size_t i = std::min<size_t>(size, sizeof value); i < sizeof memory; ++i) {
      ASSERT_EQ(memory[i], 0xAB) << "byte " << i << " with a struct of " << size;
    }
    EXPECT_EQ(size >= 24 ? out->loss_sum : 1, 1);
    EXPECT_EQ(size >= 40 ? out->grad_norm : 3, 3);
  }
}

TEST_F(BackendTable, KeepsTheCallersSizeAndChain) {
  open();
  const YokeHeader extension = {sizeof(YokeHeader), 4711, nullptr};
  YokeStepResult out{};
  out.header = {offsetof(YokeStepResult, grad_norm), YOKE_ID_STEP_RESULT, &extension};
  out.grad_norm = -5;
  const MockBatch batch({}, 1);
  const YokeStepArgs args = {
      YOKE_HEADER(YokeStepArgs, YOKE_ID_STEP_ARGS), &batch.batch(), 1, 0.1, 0, 0, 0};
  ASSERT_EQ(toy.step(wrapped, &args, &out, &err), YOKE_OK);
  EXPECT_EQ(out.loss_sum, 1);
  EXPECT_EQ(out.loss_weight, 2);
  EXPECT_EQ(out.grad_norm, -5) << "an older host does not know grad_norm";
  EXPECT_EQ(out.header.next, &extension);
}

// ---- Arguments ----

TEST_F(BackendTable, RefusesNullArgumentsWithoutCallingTheBackend) {
  open();
  act = [] { ADD_FAILURE() << "the backend was called"; };
  const YokeInitArgs init = init_args();
  const YokePlanArgs p = plan_args();
  YokeContext* other = nullptr;
  YokeStepArgs step{};
  step.header = YOKE_HEADER(YokeStepArgs, YOKE_ID_STEP_ARGS);
  YokeStepResult out{};
  out.header = YOKE_HEADER(YokeStepResult, YOKE_ID_STEP_RESULT);
  EXPECT_EQ(toy.describe(nullptr, &err), YOKE_INVALID_ARGUMENT);
  EXPECT_EQ(toy.plan(nullptr, &plan.plan, &err), YOKE_INVALID_ARGUMENT);
  EXPECT_EQ(toy.plan(&p, nullptr, &err), YOKE_INVALID_ARGUMENT);
  EXPECT_EQ(toy.init(nullptr, &other, &err), YOKE_INVALID_ARGUMENT);
  EXPECT_EQ(toy.init(&init, nullptr, &err), YOKE_INVALID_ARGUMENT);
  EXPECT_EQ(toy.wrap_model(context, nullptr, &result, &err), YOKE_INVALID_ARGUMENT);
  EXPECT_EQ(toy.wrap_model(context, &model.model(), nullptr, &err), YOKE_INVALID_ARGUMENT);
  EXPECT_EQ(toy.step(wrapped, nullptr, &out, &err), YOKE_INVALID_ARGUMENT);
  EXPECT_EQ(toy.step(wrapped, &step, &out, &err), YOKE_INVALID_ARGUMENT) << "batch is NULL";
  EXPECT_EQ(toy.step(wrapped, &step, nullptr, &err), YOKE_INVALID_ARGUMENT);
  EXPECT_EQ(toy.checkpoint(wrapped, nullptr, &err), YOKE_INVALID_ARGUMENT);
  for (int field = 0; field < 2; ++field) {
    YokeInitArgs partial = init_args();
    (field == 0 ? reinterpret_cast<const void*&>(partial.plan)
                : reinterpret_cast<const void*&>(partial.host)) = nullptr;
    EXPECT_EQ(toy.init(&partial, &other, &err), YOKE_INVALID_ARGUMENT);
    EXPECT_THAT(err.text, HasSubstr(field == 0 ? "plan" : "host"));
  }
}

TEST_F(BackendTable, RefusesAStructOfAnotherKind) {
  open();
  act = [] { ADD_FAILURE() << "the backend was called"; };
  YokeInitArgs args = init_args();
  args.header.struct_id = YOKE_ID_BATCH;
  YokeContext* other = nullptr;
  EXPECT_EQ(toy.init(&args, &other, &err), YOKE_INVALID_ARGUMENT);
  EXPECT_THAT(err.text, HasSubstr("struct_id 16, expected 14"));
  YokeStepResult out{};  // header not filled in
  const MockBatch batch({}, 1);
  const YokeStepArgs step = {
      YOKE_HEADER(YokeStepArgs, YOKE_ID_STEP_ARGS), &batch.batch(), 1, 0.1, 0, 0, 0};
  EXPECT_EQ(toy.step(wrapped, &step, &out, &err), YOKE_INVALID_ARGUMENT);
}

TEST_F(BackendTable, RefusesCallsBeforeTheirHandleExists) {
  YokeStepResult out{};
  EXPECT_EQ(toy.wrap_model(nullptr, &model.model(), &result, &err), YOKE_FAILED_PRECONDITION);
  EXPECT_EQ(toy.step(nullptr, nullptr, &out, &err), YOKE_FAILED_PRECONDITION);
  EXPECT_EQ(toy.checkpoint(nullptr, nullptr, &err), YOKE_FAILED_PRECONDITION);
  EXPECT_THAT(err.text, HasSubstr("NULL"));
}

TEST_F(BackendTable, DestroyTakesNullAndPointersToNullAndRepeats) {
  toy.destroy_model(nullptr);
  toy.destroy(nullptr);
  toy.destroy_model(&wrapped);
  toy.destroy(&context);
  open();
  toy.destroy_model(&wrapped);
  toy.destroy_model(&wrapped);
}

TEST_F(BackendTable, ResultOfWrapModelCarriesHandleAndBytes) {
  open();
  EXPECT_NE(wrapped, nullptr);
  EXPECT_EQ(result.param_bytes, 10);
  EXPECT_EQ(result.grad_bytes, 20);
  EXPECT_EQ(result.optimizer_bytes, 30);
}

TEST_F(BackendTable, ARefusalMakesPlanFailAndANoteDoesNot) {
  plan.plan.world_size = 3;
  EXPECT_EQ(plan.ask(toy, model.summary(), &err), YOKE_INVALID_ARGUMENT);
  ASSERT_EQ(plan.refusals.size(), 1u);
  EXPECT_EQ(plan.refusals[0].key, "dp_degree");
  EXPECT_EQ(plan.refusals[0].allowed, "1 | 2");
  plan.plan.world_size = 4;
  EXPECT_EQ(plan.ask(toy, model.summary(), &err), YOKE_OK);
  ASSERT_EQ(plan.refusals.size(), 1u);
  EXPECT_TRUE(plan.refusals[0].note);
}

TEST(Options, AreFoundByKeyAndAMissingOneIsNamed) {
  YokeOption options[2]{};
  options[0].key = view("bytes");
  options[0].int_value = 7;
  options[1].key = view("mode");
  options[1].string_value = view("fast");
  options[1].given = 1;
  const Options o(options, 2);
  EXPECT_EQ(o.integer("bytes"), 7);
  EXPECT_EQ(o.string("mode"), "fast");
  EXPECT_TRUE(o.given("mode"));
  EXPECT_FALSE(o.given("bytes"));
  try {
    o.boolean("lost");
    FAIL() << "no exception";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("'lost'"));
  }
}

}  // namespace
}  // namespace yoke::testing
