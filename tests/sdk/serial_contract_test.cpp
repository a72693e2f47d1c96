// serial.c fulfils the contract even if callers, callbacks and other ranks do not: nothing leaks,
// nothing hangs, and every refusal has a reason.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/support/mock_batch.hpp"
#include "tests/support/mock_host.hpp"
#include "tests/support/mock_model.hpp"

namespace yoke::testing {
namespace {

constexpr double kLr = 0.05;

const ParallelBackend& serial() {
  static const ParallelBackend& backend = load_backend(YOKE_SERIAL);
  return backend;
}

TEST(SerialStep, ForwardOnlyGivesTheLossAndChangesNothing) {
  MockHost host;
  MockModel model;
  MockPlan plan;
  Session session(serial(), plan, host, model.model());
  const MockBatch batch({8, 2}, 1);
  const auto before = save_state(session);
  const YokeStepResult only = session.step(batch.batch(), 1, kLr, YOKE_STEP_FORWARD_ONLY);
  EXPECT_TRUE(std::isnan(only.grad_norm));
  EXPECT_EQ(save_state(session), before);
  const YokeStepResult trained = session.step(batch.batch(), 1, kLr);
  EXPECT_EQ(only.loss_sum, trained.loss_sum);
  EXPECT_NE(save_state(session), before);
}

// Block b keeps 10 bytes of each sequence and passes b bytes on.
TEST(SerialMemory, HasWhatBlocksKeepForAMicroBatch) {
  MockHost host;
  const MockModel mock;
  const YokeModelSummary& whole = *mock.model().summary;
  std::vector<YokeBlock> blocks;
  for (uint64_t b = 0; b < whole.num_blocks; ++b) {
    blocks.push_back(*whole.blocks[b]);
    blocks[b].activation_bytes = 10;
    blocks[b].carry_bytes = static_cast<int64_t>(b);
  }
  std::vector<const YokeBlock*> pointers;
  for (const YokeBlock& block : blocks) pointers.push_back(&block);
  YokeModelSummary summary = whole;
  summary.blocks = pointers.data();
  YokeModel model = mock.model();
  model.summary = &summary;
  MockPlan plan;
  plan.plan.global_batch = 12;
  plan.plan.micro_batch = 3;
  const auto n = static_cast<int64_t>(whole.num_blocks);
  EXPECT_EQ(Session(serial(), plan, host, model).wrapped.activation_bytes,
            3 * (10 * n + n * (n - 1) / 2));
  blocks.back().activation_bytes = -1;
  EXPECT_EQ(Session(serial(), plan, host, model).wrapped.activation_bytes, -1);
}

TEST(SerialStep, RefusesABatchWhoseWeightIsWrong) {
  MockHost host;
  MockModel model;
  MockPlan plan;
  Session session(serial(), plan, host, model.model());
  MockBatch batch({}, 1);
  batch.claim_weight(1000);
  const auto before = save_state(session);
  try {
    session.step(batch.batch(), 1, kLr);
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), YOKE_INVALID_ARGUMENT);
    EXPECT_NE(std::string(e.what()).find("1000"), std::string::npos) << e.what();
  }
  EXPECT_EQ(save_state(session), before);
}

// Each kind of callback of the model fails once. Afterwards everything is released, and a step
// works.
class SerialFailure : public ::testing::TestWithParam<const char*> {};

TEST_P(SerialFailure, IsHandedOnAndNothingLeaks) {
  MockHost host;
  MockModel model;
  MockPlan plan;
  {
    Session session(serial(), plan, host, model.model());
    const MockBatch batch({8, 4}, 1);
    model.fail_at(GetParam(), 1);  // call in the second micro-batch
    try {
      session.step(batch.batch(), 1, kLr);
      FAIL() << "no error";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), YOKE_INTERNAL);
      EXPECT_EQ(std::string(e.what()), std::string("mock failure: ") + GetParam());
    }
    EXPECT_EQ(model.log().live_saved, 0);
    EXPECT_EQ(model.log().live_tensors, 0);
    const double loss = session.step(batch.batch(), 1, kLr).loss_sum;
    EXPECT_EQ(
        loss,
        Session(serial(), plan, host, MockModel().model()).step(batch.batch(), 1, kLr).loss_sum);
  }
  EXPECT_EQ(model.log().live_tensors, 0);
}

INSTANTIATE_TEST_SUITE_P(Callbacks,
                         SerialFailure,
                         ::testing::Values("forward embed",
                                           "forward mlp",
                                           "forward head",
                                           "backward head",
                                           "backward mlp",
                                           "backward embed"),
                         [](const auto& info) {
                           std::string name = info.param;
                           name[name.find(' ')] = '_';
                           return name;
                         });

TEST(SerialWrapModel, AFailedCallbackLeavesNothingBound) {
  for (const char* call : {"init 0", "init 4", "bind 0", "bind 5"}) {
    MockHost host;
    MockModel model;
    MockPlan plan;
    model.fail_at(call, 0);
    EXPECT_THROW(Session(serial(), plan, host, model.model()), Error) << call;
    const auto& calls = model.log().calls;
    const auto count = [&](const char* word) {
      return std::count_if(
          calls.begin(), calls.end(), [&](const std::string& c) { return c.rfind(word, 0) == 0; });
    };
    EXPECT_EQ(count("bind") - (call[0] == 'b' ? 1 : 0), count("unbind")) << call;
  }
}

TEST(SerialStep, StopsAtEveryCallOfCheckCancel) {
  for (int after = 0; after < 12; ++after) {
    MockHost host;
    MockModel model;
    MockPlan plan;
    Session session(serial(), plan, host, model.model());
    const MockBatch batch({8, 4},
                          1);  // 12 checks: 2 micro-batches x 3 blocks x forward and backward
    host.cancel_after = after;
    try {
      session.step(batch.batch(), 1, kLr);
      FAIL() << "not cancelled after " << after;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), YOKE_CANCELLED);
    }
    EXPECT_EQ(model.log().live_saved, 0);
    EXPECT_EQ(model.log().live_tensors, 0);
    host.cancel_after = -1;
    EXPECT_NO_THROW(session.step(batch.batch(), 1, kLr));
  }
}

TEST(SerialStep, RefusesAGradientOfAnUnknownParameter) {
  MockHost host;
  MockModel model;
  MockPlan plan;
  Session session(serial(), plan, host, model.model());
  model.report_wrong_parameter(true);
  EXPECT_THROW(session.step(MockBatch({}, 1).batch(), 1, kLr), Error);
  EXPECT_EQ(model.log().live_saved, 0);
  EXPECT_EQ(model.log().live_tensors, 0);
}

TEST(SerialPlan, ReportsEveryReasonAtOnce) {
  MockPlan plan;
  MockModel model;
  plan.plan.world_size = 2;
  plan.plan.degree[YOKE_PP] = 2;
  plan.plan.degree[YOKE_DP_REPLICATE] = 4;
  plan.plan.degree[YOKE_DP_SHARD] = 3;
  plan.plan.degree[YOKE_CP] = 5;
  plan.plan.degree[YOKE_TP] = 6;
  plan.plan.param_dtype = YOKE_BF16;
  plan.plan.reduce_dtype = YOKE_F32;
  plan.optimizer.kind = 77;
  YokeError err = make_error();
  EXPECT_EQ(plan.ask(serial(), model.summary(), &err), YOKE_INVALID_ARGUMENT);
  std::vector<std::string> keys;
  for (const auto& r : plan.refusals) {
    keys.push_back(r.key);
    EXPECT_FALSE(r.given.empty() || r.allowed.empty() || r.hint.empty()) << r.key;
    EXPECT_FALSE(r.note);
  }
  const std::vector<std::string> expected = {"pp_degree",
                                             "dp_degree",
                                             "dp_shards",
                                             "cp_degree",
                                             "tp_degree",
                                             "precision.param",
                                             "precision.reduce",
                                             "train.optimizer"};
  EXPECT_EQ(keys, expected);
  EXPECT_EQ(plan.refusals[1].given, "4");
  EXPECT_EQ(plan.refusals[1].allowed, "2");
}

TEST(SerialPlan, FillsWhatIsUnset) {
  MockPlan plan;
  MockModel model;
  plan.plan.world_size = 3;
  plan.plan.param_dtype = plan.plan.reduce_dtype = 0;
  YokeError err = make_error();
  ASSERT_EQ(plan.ask(serial(), model.summary(), &err), YOKE_OK) << err.text;
  const int32_t expected[] = {1, 3, 1, 1, 1};
  for (int axis = 0; axis < YOKE_NUM_AXES; ++axis)
    EXPECT_EQ(plan.plan.degree[axis], expected[axis]);
  EXPECT_EQ(plan.plan.param_dtype, YOKE_F32);
  EXPECT_EQ(plan.plan.reduce_dtype, YOKE_F32);
  EXPECT_TRUE(plan.refusals.empty());
}

TEST(SerialContract, RefusesNullWrongStructsAndMissingServices) {
  MockHost host;
  MockModel model;
  MockPlan plan;
  const ParallelBackend& b = serial();
  YokeError err = make_error();
  YokeContext* context = nullptr;
  EXPECT_EQ(b.describe(nullptr, &err), YOKE_INVALID_ARGUMENT);
  EXPECT_EQ(b.plan(nullptr, &plan.plan, nullptr), YOKE_INVALID_ARGUMENT);
  EXPECT_EQ(b.init(nullptr, &context, &err), YOKE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(err.text), "");
  YokeInitArgs args{
      YOKE_HEADER(YokeInitArgs, YOKE_ID_INIT_ARGS), &plan.plan, nullptr, 0, &host.host};
  EXPECT_EQ(b.init(&args, nullptr, &err), YOKE_INVALID_ARGUMENT);
  args.header.struct_id = YOKE_ID_BATCH;
  EXPECT_EQ(b.init(&args, &context, &err), YOKE_INVALID_ARGUMENT);
  args.header.struct_id = YOKE_ID_INIT_ARGS;
  host.host.world_size = 2;
  EXPECT_EQ(b.init(&args, &context, &err), YOKE_FAILED_PRECONDITION) << "no collectives";
  EXPECT_EQ(context, nullptr);
  host.host.world_size = 1;
  host.host.device.type = YOKE_DEVICE_CUDA;
  EXPECT_EQ(b.init(&args, &context, &err), YOKE_UNIMPLEMENTED);
  EXPECT_EQ(context, nullptr);
  EXPECT_EQ(b.wrap_model(nullptr, &model.model(), nullptr, &err), YOKE_FAILED_PRECONDITION);
  EXPECT_EQ(b.step(nullptr, nullptr, nullptr, &err), YOKE_FAILED_PRECONDITION);
  EXPECT_EQ(b.checkpoint(nullptr, nullptr, &err), YOKE_FAILED_PRECONDITION);
  b.destroy_model(nullptr);
  b.destroy(nullptr);
  YokeWrapped* no_model = nullptr;
  b.destroy_model(&no_model);
  b.destroy(&context);
}

TEST(SerialContract, RefusesAModelOfAnotherDtypeThanThePlans) {
  MockHost host;
  MockModel model({YOKE_F32, true});
  MockPlan plan;  // fp64
  EXPECT_THROW(Session(serial(), plan, host, model.model()), Error);
}

TEST(SerialContract, ReportsTheBytesItHolds) {
  MockHost host;
  MockModel model;
  MockPlan plan;
  const Session session(serial(), plan, host, model.model());
  const int64_t frozen = 5, trainable = 55 + 35 + 7 + 35 + 1;
  EXPECT_EQ(session.wrapped.param_bytes, 8 * (trainable + frozen));
  EXPECT_EQ(session.wrapped.grad_bytes, 8 * trainable);
  EXPECT_EQ(session.wrapped.optimizer_bytes, 16 * trainable);
}

TEST(SerialContract, DescribesItself) {
  const YokeDescription* d = nullptr;
  ASSERT_EQ(serial().describe(&d, nullptr), YOKE_OK);
  EXPECT_EQ(view(d->name), "serial");
  EXPECT_EQ(view(d->torch_tag), "");
  EXPECT_EQ(d->axes, YOKE_AXIS_BIT(YOKE_DP_REPLICATE));
  EXPECT_EQ(d->name.data[d->name.size], '\0');
}

}  // namespace
}  // namespace yoke::testing
