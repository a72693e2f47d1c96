#include "core/backend/loaded_backend.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace yoke {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What the functions of the fake backend below do, and the calls that it has received. There is
// only one fake backend at a time.
struct Fake {
  std::function<int32_t(const YokePlanArgs*, YokePlan*, YokeError*)> plan;
  std::function<int32_t(YokeStepResult*, YokeError*)> step;
  std::function<int32_t(YokeWrapResult*, YokeError*)> wrap;
  std::vector<std::string> calls;
} fake;

int context_object, model_object;

const YokeDescription kDescription = [] {
  YokeDescription d{};
  d.header = YOKE_HEADER(YokeDescription, YOKE_ID_DESCRIPTION);
  d.name = YOKE_STRING("fake");
  return d;
}();

const ParallelBackend kTable = {
    YOKE_HEADER(ParallelBackend, YOKE_ID_BACKEND),
    YOKE_ABI_MAJOR,
    YOKE_ABI_MINOR,
    0,
    0,
    [](const YokeDescription** out, YokeError*) -> int32_t {
      *out = &kDescription;
      return YOKE_OK;
    },
    [](const YokePlanArgs* args, YokePlan* plan, YokeError* err) {
      return fake.plan(args, plan, err);
    },
    [](const YokeInitArgs*, YokeContext** out, YokeError*) -> int32_t {
      *out = reinterpret_cast<YokeContext*>(&context_object);
      fake.calls.push_back("init");
      return YOKE_OK;
    },
    [](YokeContext* context, const YokeModel*, YokeWrapResult* out, YokeError* err) -> int32_t {
      EXPECT_EQ(context, reinterpret_cast<YokeContext*>(&context_object));
      fake.calls.push_back("wrap_model");
      out->model = reinterpret_cast<YokeWrapped*>(&model_object);
      return fake.wrap ? fake.wrap(out, err) : YOKE_OK;
    },
    [](YokeWrapped*, const YokeStepArgs*, YokeStepResult* out, YokeError* err) {
      return fake.step(out, err);
    },
    [](YokeWrapped*, const YokeCheckpointArgs*, YokeError* err) {
      return fill(err, YOKE_DATA_LOSS, "damaged");
    },
    [](YokeWrapped** model) {
      fake.calls.push_back("destroy_model");
      *model = nullptr;
    },
    [](YokeContext** context) {
      fake.calls.push_back("destroy");
      *context = nullptr;
    }};

class LoadedBackendTest : public ::testing::Test {
 protected:
  void SetUp() override { fake = Fake{}; }

  PlanResult plan() const {
    YokePlan p{};
    p.header = YOKE_HEADER(YokePlan, YOKE_ID_PLAN);
    return backend.plan(YokeModelSummary{}, nullptr, 0, p);
  }
  WrappedModel wrapped() { return context.wrap_model(YokeModel{}); }

  LoadedBackend backend{&kTable, "/x/fake.so"};
  BackendContext context = backend.init(YokeInitArgs{});
};

void refuse(const YokePlanArgs* args, const char* key, int32_t note) {
  YokeRefusal r{};
  r.header = YOKE_HEADER(YokeRefusal, YOKE_ID_REFUSAL);
  r.key = view(std::string_view(key));
  r.given = YOKE_STRING("3");
  r.allowed = YOKE_STRING("1, 2");
  r.hint = YOKE_STRING("halve it");
  r.note = note;
  args->refuse(args->refuse_ctx, &r);
}

TEST_F(LoadedBackendTest, CollectsEveryRefusalAndNote) {
  fake.plan = [](const YokePlanArgs* args, YokePlan*, YokeError* err) {
    refuse(args, "tp_degree", 0);
    refuse(args, "train.clip", 1);
    refuse(args, "cp_degree", 0);
    return fill(err, YOKE_INVALID_ARGUMENT, "2 reasons");
  };
  const PlanResult report = plan();
  ASSERT_EQ(report.refusals.size(), 2u);
  ASSERT_EQ(report.notes.size(), 1u);
  EXPECT_EQ(remark_text(report.refusals[0]), "tp_degree = 3; allowed: 1, 2; halve it");
  EXPECT_EQ(report.refusals[1].key, "cp_degree");
  EXPECT_EQ(report.notes[0].key, "train.clip");
}

TEST_F(LoadedBackendTest, ReadsARefusalOfAnOlderBackendOnlyAsFarAsItGoes) {
  fake.plan = [](const YokePlanArgs* args, YokePlan*, YokeError*) -> int32_t {
    YokeRefusal r{};
    r.header = {offsetof(YokeRefusal, hint), YOKE_ID_REFUSAL, nullptr};
    r.key = YOKE_STRING("k");
    r.hint = {reinterpret_cast<const char*>(1), 99};  // beyond its size: must not be touched
    r.note = 1;
    args->refuse(args->refuse_ctx, &r);
    return YOKE_INVALID_ARGUMENT;
  };
  const PlanResult report = plan();
  ASSERT_EQ(report.refusals.size(), 1u);
  EXPECT_EQ(remark_text(report.refusals[0]), "k");
}

TEST_F(LoadedBackendTest, ThrowsWhenAPlanFailsWithoutAReason) {
  fake.plan = [](const YokePlanArgs*, YokePlan*, YokeError* err) {
    return fill(err, YOKE_INTERNAL, "lost a wheel");
  };
  try {
    plan();
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "fake: lost a wheel");
    EXPECT_EQ(e.code(), YOKE_INTERNAL);
  }
}

TEST_F(LoadedBackendTest, TurnsACodeIntoAnErrorThatNamesTheBackend) {
  WrappedModel model = wrapped();
  fake.step = [](YokeStepResult*, YokeError* err) {
    return fill(err, YOKE_UNAVAILABLE, "rank 2 is gone", 2, 17);
  };
  try {
    model.step(YokeStepArgs{});
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "fake: rank 2 is gone");
    EXPECT_EQ(e.code(), YOKE_UNAVAILABLE);
    EXPECT_EQ(e.rank(), 2);
    EXPECT_EQ(e.step(), 17);
  }
}

TEST_F(LoadedBackendTest, DoesNotRepeatTheTextOfAnEarlierFailure) {
  WrappedModel model = wrapped();
  fake.step = [](YokeStepResult*, YokeError* err) { return fill(err, YOKE_INTERNAL, "first"); };
  EXPECT_THROW(model.step(YokeStepArgs{}), Error);
  fake.step = [](YokeStepResult*, YokeError*) -> int32_t { return YOKE_UNKNOWN; };
  try {
    model.step(YokeStepArgs{});
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "fake: step failed with code 2 and no message");
  }
}

TEST_F(LoadedBackendTest, LeavesWhatTheBackendDoesNotFillUnknown) {
  WrappedModel model = wrapped();
  fake.step = [](YokeStepResult* out, YokeError*) -> int32_t {
    out->loss_sum = 4.5;
    return YOKE_OK;
  };
  const YokeStepResult result = model.step(YokeStepArgs{});
  EXPECT_EQ(result.loss_sum, 4.5);
  EXPECT_TRUE(std::isnan(result.loss_weight));
  EXPECT_TRUE(std::isnan(result.grad_norm));
  EXPECT_EQ(model.wrap_result().param_bytes, -1);
}

TEST_F(LoadedBackendTest, ThrowsWhenACheckpointFails) {
  WrappedModel model = wrapped();
  EXPECT_THROW(model.checkpoint(YokeCheckpointArgs{}), Error);
}

TEST_F(LoadedBackendTest, DestroysModelsBeforeTheContextAndEachOnce) {
  {
    BackendContext first = backend.init(YokeInitArgs{});
    BackendContext moved = std::move(first);
    WrappedModel model = moved.wrap_model(YokeModel{});
    const WrappedModel kept = std::move(model);
  }
  EXPECT_THAT(fake.calls, ElementsAre("init", "wrap_model", "destroy_model", "destroy"));
}

TEST_F(LoadedBackendTest, RefusesAModelThatIsNotThere) {
  fake.wrap = [](YokeWrapResult* out, YokeError*) -> int32_t {
    out->model = nullptr;
    return YOKE_OK;
  };
  EXPECT_THROW(wrapped(), Error);
}

TEST_F(LoadedBackendTest, RefusesTablesThatItMustNotUse) {
  const auto failure = [](const std::function<void(ParallelBackend&)>& spoil) -> std::string {
    ParallelBackend table = kTable;
    spoil(table);
    try {
      LoadedBackend(&table, "/x/fake.so");
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(failure([](ParallelBackend&) {}), "");
  EXPECT_EQ(failure([](ParallelBackend& t) { t.abi_minor = 42; }), "");
  EXPECT_THAT(failure([](ParallelBackend& t) { t.header.struct_id = 0; }),
              HasSubstr("not a backend's table"));
  EXPECT_THAT(failure([](ParallelBackend& t) { t.header.struct_size -= 1; }), HasSubstr("too few"));
  EXPECT_THAT(failure([](ParallelBackend& t) { t.abi_major = 2; }),
              HasSubstr("another major version"));
  EXPECT_THAT(failure([](ParallelBackend& t) { t.min_host_minor = 42; }),
              HasSubstr("at least ABI 1.42"));
  EXPECT_THAT(failure([](ParallelBackend& t) { t.describe = nullptr; }),
              HasSubstr("'describe' is NULL"));
  EXPECT_THAT(failure([](ParallelBackend& t) { t.plan = nullptr; }), HasSubstr("'plan' is NULL"));
  EXPECT_THAT(failure([](ParallelBackend& t) { t.init = nullptr; }), HasSubstr("'init' is NULL"));
  EXPECT_THAT(failure([](ParallelBackend& t) { t.wrap_model = nullptr; }),
              HasSubstr("'wrap_model' is NULL"));
  EXPECT_THAT(failure([](ParallelBackend& t) { t.step = nullptr; }), HasSubstr("'step' is NULL"));
  EXPECT_THAT(failure([](ParallelBackend& t) { t.checkpoint = nullptr; }),
              HasSubstr("'checkpoint' is NULL"));
  EXPECT_THAT(failure([](ParallelBackend& t) { t.destroy_model = nullptr; }),
              HasSubstr("'destroy_model' is NULL"));
  EXPECT_THAT(failure([](ParallelBackend& t) { t.destroy = nullptr; }),
              HasSubstr("'destroy' is NULL"));
}

}  // namespace
}  // namespace yoke
