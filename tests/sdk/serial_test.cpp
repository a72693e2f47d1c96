// Compares serial.c with a plain loop in fp64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/mock_batch.hpp"
#include "tests/support/mock_element.hpp"
#include "tests/support/mock_host.hpp"
#include "tests/support/mock_loop.hpp"
#include "tests/support/mock_model.hpp"
#include "tests/support/mock_world.hpp"

namespace yoke::testing {
namespace {

// The tolerance allows for rounding, because sums are computed in a different order. Logic errors
// cause differences of 1e-7 and more.
constexpr double kFp64 = 1e-12;
// Arrays are fp32 and arithmetic is double. The parameters are rounded in every step, so the loss
// drifts.
constexpr double kFp32 = 2e-6;
constexpr int kSteps = MockRun::kSteps;

const ParallelBackend& serial() {
  static const ParallelBackend& backend = load_backend(YOKE_SERIAL);
  return backend;
}

std::vector<std::vector<double>> params_of(Session& session) {
  std::vector<std::vector<double>> params;
  for (const SavedPiece& piece : save_state(session)) {
    if (piece.key.find("/param") == std::string::npos) continue;
    params.emplace_back(piece.count);
    for (int64_t i = 0; i < piece.count; ++i)
      params.back()[i] = get_element(piece.bytes.data(), piece.dtype, i);
  }
  return params;
}

MockTrace through_serial(const MockRun& c, MockHost& host) {
  MockModel model({c.dtype, c.tied});
  MockPlan plan;
  c.configure(plan);
  plan.plan.world_size = host.host.world_size;
  MockTrace trace;
  {
    Session session(serial(), plan, host, model.model());
    for (int t = 1; t <= kSteps; ++t) {
      const MockBatch batch({8, c.micro_batch, host.host.rank, host.host.world_size}, t);
      const YokeStepResult r = session.step(batch.batch(), t, c.lr_at(t));
      EXPECT_EQ(r.loss_weight, batch.batch().token_weight);
      trace.loss.push_back(r.loss_sum / r.loss_weight);
      trace.norm.push_back(r.grad_norm);
    }
    trace.params = params_of(session);
  }
  EXPECT_EQ(model.log().live_saved, 0);
  EXPECT_EQ(model.log().live_tensors, 0);
  EXPECT_TRUE(host.log.empty());
  return trace;
}

class Serial : public ::testing::TestWithParam<MockRun> {
 protected:
  double bound() const { return GetParam().dtype == YOKE_F64 ? kFp64 : kFp32; }
};

TEST_P(Serial, EqualsThePlainLoop) {
  const MockTrace oracle = plain_mock_loop(GetParam());
  ASSERT_LT(oracle.loss.back(), 0.9 * oracle.loss.front());
  MockHost host;
  expect_close(through_serial(GetParam(), host), oracle, bound());
}

TEST_P(Serial, TwoRanksEqualThePlainLoop) {
  MockRun c = GetParam();
  c.micro_batch = std::min<int64_t>(c.micro_batch, 4);
  const MockTrace oracle = plain_mock_loop(c);
  MockWorld world(2);
  MockTrace traces[2];
  world.run([&](int32_t rank) {
    MockHost host(&world, rank, 2);
    traces[rank] = through_serial(c, host);
  });
  expect_close(traces[0], oracle, bound());
  EXPECT_EQ(traces[0].loss, traces[1].loss);
  EXPECT_EQ(traces[0].params, traces[1].params) << "replicas must stay bit-equal";
  EXPECT_EQ(world.all_reduces(), 2 * kSteps) << "the losses and the gradients, once a step";
}

INSTANTIATE_TEST_SUITE_P(
    Cases,
    Serial,
    ::testing::Values(
        MockRun{.name = "adamw"},
        MockRun{.name = "adamw_no_clip", .clip = 0},
        MockRun{.name = "adamw_clip_always", .clip = 0.01},
        MockRun{.name = "adamw_no_decay", .weight_decay = 0},
        MockRun{.name = "sgd", .kind = YOKE_SGD, .clip = 0},
        MockRun{.name = "sgd_momentum_clip", .kind = YOKE_SGD, .momentum = 0.9, .clip = 0.5},
        MockRun{.name = "accumulation_2", .micro_batch = 4},
        MockRun{.name = "accumulation_8", .micro_batch = 1},
        MockRun{.name = "untied", .tied = false},
        MockRun{.name = "adamw_fp32", .dtype = YOKE_F32},
        MockRun{.name = "adam", .kind = YOKE_ADAM, .weight_decay = 0.01},
        MockRun{.name = "adamw_uncorrected", .kind = YOKE_ADAMW_UNCORRECTED},
        MockRun{.name = "adam_uncorrected", .kind = YOKE_ADAM_UNCORRECTED, .weight_decay = 0.01},
        MockRun{.name = "lion", .kind = YOKE_LION},
        MockRun{.name = "sgd_fp32", .kind = YOKE_SGD, .momentum = 0.9, .dtype = YOKE_F32}),
    [](const auto& info) { return std::string(info.param.name); });

// ---- State ----

TEST(SerialCheckpoint, ResumeIsBitEqualToAnUninterruptedRun) {
  const MockRun c{.name = "resume"};
  MockHost host;
  const MockTrace whole = through_serial(c, host);
  std::vector<SavedPiece> saved;
  MockModel model;
  MockPlan plan;
  {
    Session first(serial(), plan, host, model.model());
    for (int t = 1; t <= 5; ++t) first.step(MockBatch({}, t).batch(), t, c.lr_at(t));
    saved = save_state(first);
  }
  Session second(serial(), plan, host, model.model());
  load_state(second, saved);
  EXPECT_EQ(save_state(second), saved);
  for (int t = 6; t <= kSteps; ++t) {
    const MockBatch batch({}, t);
    const YokeStepResult r = second.step(batch.batch(), t, c.lr_at(t));
    EXPECT_EQ(r.loss_sum / r.loss_weight, whole.loss[t - 1]) << "step " << t;
    EXPECT_EQ(r.grad_norm, whole.norm[t - 1]) << "step " << t;
  }
  EXPECT_EQ(params_of(second), whole.params);
}

TEST(SerialCheckpoint, VisitsTheSamePiecesInTheSameOrderForEveryOperation) {
  MockHost host;
  MockModel model;
  MockPlan plan;
  Session session(serial(), plan, host, model.model());
  std::vector<std::string> orders[4];
  for (int32_t op : {YOKE_CHECKPOINT_SAVE, YOKE_CHECKPOINT_LOAD, YOKE_CHECKPOINT_DESCRIBE}) {
    session.checkpoint(op, [&](const YokePiece& p) {
      orders[op].push_back(std::string(view(p.name)) + "/" + std::string(view(p.kind)));
      EXPECT_EQ(p.view == nullptr, op == YOKE_CHECKPOINT_DESCRIBE);
      EXPECT_EQ(p.begin, 0);
      EXPECT_EQ(p.count, numel(p.shape, p.ndim));
      EXPECT_EQ(p.replica, 0);
    });
  }
  EXPECT_EQ(orders[YOKE_CHECKPOINT_SAVE], orders[YOKE_CHECKPOINT_LOAD]);
  EXPECT_EQ(orders[YOKE_CHECKPOINT_SAVE], orders[YOKE_CHECKPOINT_DESCRIBE]);
  const std::vector<std::string> expected = {"embed.weight/param",
                                             "embed.weight/exp_avg",
                                             "embed.weight/exp_avg_sq",
                                             "mlp.up.weight/param",
                                             "mlp.up.weight/exp_avg",
                                             "mlp.up.weight/exp_avg_sq",
                                             "mlp.up.bias/param",
                                             "mlp.up.bias/exp_avg",
                                             "mlp.up.bias/exp_avg_sq",
                                             "mlp.scale/param",
                                             "mlp.down.weight/param",
                                             "mlp.down.weight/exp_avg",
                                             "mlp.down.weight/exp_avg_sq",
                                             "head.gain/param",
                                             "head.gain/exp_avg",
                                             "head.gain/exp_avg_sq",
                                             "optimizer/step"};
  EXPECT_EQ(orders[YOKE_CHECKPOINT_SAVE], expected);
}

TEST(SerialCheckpoint, SgdKeepsMomentumOnlyIfThereIsAny) {
  for (double momentum : {0.0, 0.9}) {
    MockHost host;
    MockModel model;
    MockPlan plan;
    plan.optimizer.kind = YOKE_SGD;
    plan.optimizer.momentum = momentum;
    Session session(serial(), plan, host, model.model());
    int moments = 0;
    for (const SavedPiece& p : save_state(session))
      moments += p.key.find("/momentum") != std::string::npos;
    EXPECT_EQ(moments, momentum == 0 ? 0 : 5);
    EXPECT_EQ(session.wrapped.optimizer_bytes, momentum == 0 ? 0 : session.wrapped.grad_bytes);
  }
}

TEST(SerialCheckpoint, TheVisitorsErrorEndsTheCall) {
  MockHost host;
  MockModel model;
  MockPlan plan;
  Session session(serial(), plan, host, model.model());
  int visits = 0;
  try {
    session.checkpoint(YOKE_CHECKPOINT_SAVE, [&](const YokePiece&) {
      if (++visits == 3) throw Error(YOKE_DATA_LOSS, "the disk is full");
    });
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), YOKE_DATA_LOSS);
    EXPECT_STREQ(e.what(), "the disk is full");
  }
  EXPECT_EQ(visits, 3);
}

}  // namespace
}  // namespace yoke::testing
