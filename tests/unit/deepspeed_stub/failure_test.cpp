// A step that fails leaks nothing and changes no state, and the next step works.
#include <gtest/gtest.h>

#include "tests/support/mock_batch.hpp"
#include "tests/support/mock_model.hpp"
#include "tests/unit/deepspeed_stub/rig.hpp"

namespace yoke::deepspeed_stub::testing {
namespace {

using namespace yoke::testing;

constexpr double kLr = 0.05;

class ZeroFailure : public ::testing::TestWithParam<int> {
 protected:
  ZeroFailure() {
    plan.options = small_buckets();
    plan.options["zero_stage"] = std::to_string(GetParam());
  }
  void expect_clean() {
    EXPECT_EQ(model.log().live_saved, 0);
    EXPECT_EQ(model.log().live_tensors, 0);
  }

  MockHost host;
  MockModel model;
  MockPlan plan;
  const MockBatch batch{{8, 4}, 1};
};

TEST_P(ZeroFailure, OfACallbackIsPassedOn) {
  for (const char* call : {"forward embed", "forward head", "backward head", "backward embed"}) {
    Session session(plugin(), plan, host, model.model());
    const auto before = save_state(session);
    model.fail_at(call, 1);  // fails in the second micro-batch
    try {
      session.step(batch.batch(), 1, kLr);
      FAIL() << "no error";
    } catch (const Error& e) {
      EXPECT_EQ(std::string(e.what()), std::string("mock failure: ") + call);
    }
    expect_clean();
    EXPECT_EQ(save_state(session), before);
    session.step(batch.batch(), 1, kLr);
    MockModel other;
    Session never_failed(plugin(), plan, host, other.model());
    never_failed.step(batch.batch(), 1, kLr);
    EXPECT_EQ(save_state(session), save_state(never_failed)) << call;
  }
}

TEST_P(ZeroFailure, OfWrapModelLeavesNothingBound) {
  for (const char* call : {"init 0", "init 4", "bind 2"}) {
    MockModel fresh;
    fresh.fail_at(call, 0);
    EXPECT_THROW(Session(plugin(), plan, host, fresh.model()), Error) << call;
    int bound = 0;
    for (const std::string& c : fresh.log().calls) {
      if (c != call) bound += c.starts_with("bind") ? 1 : c.starts_with("unbind") ? -1 : 0;
    }
    EXPECT_EQ(bound, 0) << call;
  }
}

TEST_P(ZeroFailure, OfAWrongNumberOfTargetsPreventsTheUpdate) {
  Session session(plugin(), plan, host, model.model());
  const auto before = save_state(session);
  MockBatch wrong({}, 1);
  wrong.claim_weight(1000);
  EXPECT_THROW(session.step(wrong.batch(), 1, kLr), Error);
  EXPECT_EQ(save_state(session), before);
  expect_clean();
}

TEST_P(ZeroFailure, OfAGradientForAnUnknownParameterIsAnError) {
  Session session(plugin(), plan, host, model.model());
  model.report_wrong_parameter(true);
  EXPECT_THROW(session.step(batch.batch(), 1, kLr), Error);
  expect_clean();
}

TEST_P(ZeroFailure, CancellingStopsAtTheNextBlock) {
  Session session(plugin(), plan, host, model.model());
  for (const int after : {0, 5, 11}) {
    host.cancel_after = after;
    try {
      session.step(batch.batch(), 1, kLr);
      FAIL() << "not cancelled";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), YOKE_CANCELLED);
    }
    expect_clean();
  }
  host.cancel_after = -1;
  EXPECT_NO_THROW(session.step(batch.batch(), 1, kLr));
}

TEST_P(ZeroFailure, EvaluationGivesTheLossAndChangesNothing) {
  Session session(plugin(), plan, host, model.model());
  const auto before = save_state(session);
  const double loss = session.step(batch.batch(), 1, kLr, YOKE_STEP_FORWARD_ONLY).loss_sum;
  EXPECT_EQ(save_state(session), before);
  expect_clean();
  EXPECT_EQ(session.step(batch.batch(), 1, kLr).loss_sum, loss);
}

INSTANTIATE_TEST_SUITE_P(Stages, ZeroFailure, ::testing::Values(0, 1, 2, 3));

TEST(DeepspeedStub, DeclaresEveryZeroStageAndNoLibTorch) {
  const YokeDescription* d = nullptr;
  ASSERT_EQ(plugin().describe(&d, nullptr), YOKE_OK);
  EXPECT_EQ(d->zero_stages, 0xfu);
  EXPECT_EQ(view(d->torch_tag), "");
}

TEST(DeepspeedStub, NeedsCollectivesForSeveralRanksAndAKnownDevice) {
  MockHost host;
  MockModel model;
  MockPlan plan;
  plan.plan.world_size = host.host.world_size = 2;
  EXPECT_THROW(Session(plugin(), plan, host, model.model()), Error);
  plan.plan.world_size = host.host.world_size = 1;
  host.host.device.type = 99;
  EXPECT_THROW(Session(plugin(), plan, host, model.model()), Error);
}

}  // namespace
}  // namespace yoke::deepspeed_stub::testing
