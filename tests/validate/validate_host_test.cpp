// Tests what validate finds in a host that does something wrong, which no run of Yoke shows. The
// host is a mock; the inner backend is `serial`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "plugins/validate/rules.hpp"
#include "tests/support/mock_batch.hpp"
#include "tests/support/mock_host.hpp"
#include "tests/support/mock_model.hpp"
#include "tests/support/mock_world.hpp"

namespace yoke::validate {
namespace {

using ::testing::HasSubstr;
using testing::MockBatch;
using testing::MockHost;
using testing::MockModel;
using testing::MockPlan;
using testing::MockWorld;

const ParallelBackend& serial() {
  static const ParallelBackend& backend = testing::load_backend(YOKE_SERIAL);
  return backend;
}
const ParallelBackend& checked() {
  static const ParallelBackend& backend = testing::load_backend(YOKE_VALIDATE);
  return backend;
}

// A host that opens `serial` for the backend that it runs.
struct OpeningHost {
  explicit OpeningHost(MockWorld* world = nullptr, int32_t rank = 0, int32_t size = 1)
      : mock(world, rank, size), of_mock(mock.host.get_service) {
    service.header = YOKE_HEADER(YokeBackends, YOKE_ID_BACKENDS);
    service.ctx = this;
    service.open = [](void* ctx, const char*, uint32_t, YokeInnerBackend* out, YokeError*) {
      auto& self = *static_cast<OpeningHost*>(ctx);
      out->table = &serial();
      out->options = nullptr;
      out->num_options = 0;
      out->host = &self.host;
      return static_cast<int32_t>(YOKE_OK);
    };
    host = mock.host;
    host.ctx = this;
    host.log = [](void* ctx, int32_t level, YokeString text) {
      YokeHost& real = static_cast<OpeningHost*>(ctx)->mock.host;
      real.log(real.ctx, level, text);
    };
    host.check_cancel = [](void*) { return int32_t{0}; };
    host.get_service = [](void* ctx, const char* name, uint64_t size) -> const YokeHeader* {
      auto& self = *static_cast<OpeningHost*>(ctx);
      if (std::strcmp(name, "yoke.backends/1") == 0) return &self.service.header;
      return self.of_mock(self.mock.host.ctx, name, size);
    };
  }
  MockHost mock;
  const YokeHeader* (*of_mock)(void*, const char*, uint64_t);
  YokeBackends service{};
  YokeHost host{};
};

// A run of validate on serial, call by call.
struct CheckedRun {
  explicit CheckedRun(OpeningHost& opening)
      : host(opening), options(checked(), {{"inner", "serial"}}) {
    plan.extensions = &host.service.header;
    plan.plan.world_size = host.host.world_size;
    plan.plan.micro_batch = 8;
    EXPECT_EQ(plan.ask(checked(), model.summary(), &err), YOKE_OK) << err.text;
    plan.plan.degree[YOKE_DP_REPLICATE] = host.host.world_size;
  }
  ~CheckedRun() {
    checked().destroy_model(&wrapped.model);
    checked().destroy(&context);
  }
  int32_t init() {
    args.header = YOKE_HEADER(YokeInitArgs, YOKE_ID_INIT_ARGS);
    args.plan = &plan.plan;
    args.options = options.values().data();
    args.num_options = options.values().size();
    args.host = &host.host;
    return checked().init(&args, &context, &err);
  }
  int32_t wrap(const YokeModel* other = nullptr) {
    wrapped.header = YOKE_HEADER(YokeWrapResult, YOKE_ID_WRAP_RESULT);
    return checked().wrap_model(context, other == nullptr ? &model.model() : other, &wrapped, &err);
  }
  int32_t step(const YokeBatch& batch, int64_t number, double lr = 0.1, uint32_t flags = 0) {
    YokeStepArgs step{};
    step.header = YOKE_HEADER(YokeStepArgs, YOKE_ID_STEP_ARGS);
    step.batch = &batch;
    step.step = number;
    step.lr = lr;
    step.flags = flags;
    YokeStepResult result{};
    result.header = YOKE_HEADER(YokeStepResult, YOKE_ID_STEP_RESULT);
    return checked().step(wrapped.model, &step, &result, &err);
  }
  void start() {
    ASSERT_EQ(init(), YOKE_OK) << err.text;
    ASSERT_EQ(wrap(), YOKE_OK) << err.text;
  }

  OpeningHost& host;
  testing::MockOptions options;
  MockModel model;
  MockPlan plan;
  YokeInitArgs args{};
  YokeContext* context = nullptr;
  YokeWrapResult wrapped{};
  YokeError err = make_error();
};

void expect_rule(Rule rule, int32_t code, const CheckedRun& run) {
  EXPECT_NE(code, YOKE_OK);
  EXPECT_THAT(std::string(run.err.text), HasSubstr(id_of(rule) + ", a fault of the host"));
}

TEST(Host, ThatKeepsTheRulesIsAccepted) {
  OpeningHost host;
  {
    CheckedRun run(host);
    run.start();
    const MockBatch batch({}, 1);
    EXPECT_EQ(run.step(batch.batch(), 1), YOKE_OK) << run.err.text;
    EXPECT_EQ(run.step(batch.batch(), 1, 0, YOKE_STEP_FORWARD_ONLY), YOKE_OK) << run.err.text;
    EXPECT_EQ(run.step(batch.batch(), 2), YOKE_OK) << run.err.text;
  }
  ASSERT_EQ(host.mock.log.size(), 1u);
  EXPECT_THAT(host.mock.log[0], HasSubstr("no violation"));
}

TEST(Host, ThatPassesAnIncompletePlanIsNamed) {
  OpeningHost host;
  CheckedRun run(host);
  run.plan.plan.micro_batch = 0;
  expect_rule(Rule::kPlanIsComplete, run.init(), run);
}

TEST(Host, ThatPassesAWrongBatchIsNamed) {
  OpeningHost host;
  CheckedRun run(host);
  run.start();
  MockBatch batch({}, 1);
  batch.claim_weight(0);
  expect_rule(Rule::kBatchIsWellFormed, run.step(batch.batch(), 1), run);
}

TEST(Host, ThatPassesOtherSequencesIsNamed) {
  OpeningHost host;
  CheckedRun run(host);
  run.start();
  const MockBatch batch({8, 4, 0, 1, 3}, 1);  // the plan has micro-batches of 8
  ASSERT_EQ(run.plan.plan.micro_batch, 8);
  expect_rule(Rule::kBatchIsWellFormed, run.step(batch.batch(), 1), run);
}

TEST(Host, ThatCountsStepsWronglyIsNamed) {
  for (const auto& [number, flags, lr] : {std::tuple(2, 0u, 0.1),
                                          std::tuple(1, unsigned{YOKE_STEP_FORWARD_ONLY}, 0.0),
                                          std::tuple(1, 0u, -0.1)}) {
    OpeningHost host;
    CheckedRun run(host);
    run.start();
    const MockBatch batch({}, 1);
    expect_rule(Rule::kStepNumbers, run.step(batch.batch(), number, lr, flags), run);
  }
}

TEST(Host, ThatCallsTwoFunctionsAtOnceIsNamed) {
  OpeningHost host;
  CheckedRun run(host);
  run.start();
  struct Visit {
    CheckedRun& run;
    MockBatch batch{{}, 1};
  } visit{run};
  YokeCheckpointArgs args{};
  args.header = YOKE_HEADER(YokeCheckpointArgs, YOKE_ID_CHECKPOINT_ARGS);
  args.op = YOKE_CHECKPOINT_SAVE;
  args.visit_ctx = &visit;
  args.visit = [](void* ctx, const YokePiece*, YokeError*) {
    auto& v = *static_cast<Visit*>(ctx);
    expect_rule(Rule::kOrderOfCalls, v.run.step(v.batch.batch(), 1), v.run);
    return static_cast<int32_t>(YOKE_OK);
  };
  EXPECT_EQ(checked().checkpoint(run.wrapped.model, &args, &run.err), YOKE_OK) << run.err.text;
}

TEST(Host, ThatGivesRanksOtherArgumentsIsNamed) {
  MockWorld world(2);
  world.run([&](int32_t rank) {
    OpeningHost host(&world, rank, 2);
    CheckedRun run(host);
    run.plan.plan.micro_batch = 4;
    run.start();
    const MockBatch batch({8, 4, rank, 2, 3}, 1);
    expect_rule(Rule::kRanksGetTheSameArguments, run.step(batch.batch(), 1, rank + 1), run);
    EXPECT_THAT(std::string(run.err.text), HasSubstr("lr is 1 on rank 0 and 2 on rank 1"));
  });
}

TEST(Host, ThatChangesThePlanIsNamed) {
  OpeningHost host;
  {
    CheckedRun run(host);
    run.start();
    run.plan.optimizer.beta1 = 0.5;
  }
  ASSERT_GE(host.mock.log.size(), 1u);
  EXPECT_THAT(host.mock.log[0], HasSubstr("V38, a fault of the host"));
}

TEST(Host, ThatReportsAGradientTwiceIsNamed) {
  OpeningHost host;
  CheckedRun run(host);
  static const YokeModel* real;
  real = &run.model.model();
  YokeModel twice = *real;
  twice.block_backward =
      [](void* ctx, const YokeBackwardArgs* args, YokeManagedTensor** grad_in, YokeError* err) {
        static const YokeBackwardArgs* outer;
        outer = args;
        YokeBackwardArgs mine = *args;
        mine.on_grad_ready = [](void* c, int64_t param, const YokeTensor* grad, YokeError* e) {
          const int32_t code = outer->on_grad_ready(c, param, grad, e);
          return code != YOKE_OK ? code : outer->on_grad_ready(c, param, grad, e);
        };
        return real->block_backward(ctx, &mine, grad_in, err);
      };
  ASSERT_EQ(run.init(), YOKE_OK);
  ASSERT_EQ(run.wrap(&twice), YOKE_OK);
  const MockBatch batch({}, 1);
  expect_rule(Rule::kBlocksReturnWhatTheyPromise, run.step(batch.batch(), 1), run);
}

}  // namespace
}  // namespace yoke::validate
