// serial.c against a plain loop in fp64: the same mathematics of the mock model, but parameters,
// gradients and optimizer written down once more in the simplest way.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ostream>

#include "tests/support/mock_batch.hpp"
#include "tests/support/mock_host.hpp"
#include "tests/support/mock_model.hpp"
#include "tests/support/mock_world.hpp"

namespace yoke::testing {
namespace {

// Rounding only: sums run in another order. A defect of the logic shows at 1e-7 and above.
constexpr double kFp64 = 1e-12;
// fp32 storage, double arithmetic; the loss drifts with the rounding of parameters over the steps.
constexpr double kFp32 = 2e-6;
constexpr int kSteps = 12;
constexpr double kLr = 0.05;

const ParallelBackend& serial() {
  static const ParallelBackend& backend = load_backend(YOKE_SERIAL);
  return backend;
}

struct Case {
  const char* name;
  int32_t kind = YOKE_ADAMW;
  double momentum = 0, weight_decay = 0.1, clip = 1.0;
  int64_t micro_batch = 8;
  bool tied = true;
  int32_t dtype = YOKE_F64;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

void configure(const Case& c, MockPlan& plan) {
  plan.optimizer.kind = c.kind;
  plan.optimizer.momentum = c.momentum;
  plan.optimizer.weight_decay = c.weight_decay;
  plan.optimizer.clip = c.clip;
  plan.plan.param_dtype = plan.plan.reduce_dtype = c.dtype;
}

double lr_at(const Case& c, int step) {
  return (c.kind == YOKE_SGD ? 40 : 1) * kLr / std::sqrt(step);
}

struct Trace {
  std::vector<double> loss, norm;
  std::vector<std::vector<double>> params;  // trainable and frozen, at the end
};

// The oracle.
Trace plain_loop(const Case& c) {
  const MockModel model({YOKE_F64, c.tied});
  MockModel::Values v = model.initial_values();
  auto m = v.grads, s = v.grads;  // zeros of the right shapes
  Trace trace;
  for (int t = 1; t <= kSteps; ++t) {
    const MockBatch batch({8, 8}, t);  // no micro-batches here
    for (auto& g : v.grads) std::fill(g.begin(), g.end(), 0.0);
    v.loss_sum = 0;
    model.add_micro_batch(*batch.batch().micros[0], 1 / batch.batch().token_weight, v);
    double squares = 0;
    for (const auto& grad : v.grads) {
      for (double g : grad) squares += g * g;
    }
    const double norm = std::sqrt(squares);
    const double scale = c.clip > 0 && c.clip < norm + 1e-6 ? c.clip / (norm + 1e-6) : 1;
    for (size_t p = 0; p < v.params.size(); ++p) {
      const YokeParameter& info = *model.summary().params[p];
      for (size_t i = 0; info.trainable && i < v.params[p].size(); ++i) {
        double& x = v.params[p][i];
        const double g = v.grads[p][i] * scale, lr = lr_at(c, t);
        if (info.decay) x -= lr * c.weight_decay * x;
        if (c.kind == YOKE_SGD) {
          m[p][i] = c.momentum * m[p][i] + g;
          x -= lr * m[p][i];
        } else {
          m[p][i] += (1 - 0.9) * (g - m[p][i]);
          s[p][i] += (1 - 0.95) * (g * g - s[p][i]);
          const double m_hat = m[p][i] / (1 - std::pow(0.9, t)),
                       s_hat = s[p][i] / (1 - std::pow(0.95, t));
          x -= lr * m_hat / (std::sqrt(s_hat) + 1e-8);
        }
      }
    }
    trace.loss.push_back(v.loss_sum / batch.batch().token_weight);
    trace.norm.push_back(norm);
  }
  trace.params = v.params;
  return trace;
}

std::vector<std::vector<double>> params_of(Session& session) {
  std::vector<std::vector<double>> params;
  for (const SavedPiece& piece : save_state(session)) {
    if (piece.key.find("/param") == std::string::npos) continue;
    params.emplace_back(piece.count);
    for (int64_t i = 0; i < piece.count; ++i) {
      float f;
      if (piece.dtype == YOKE_F64)
        std::memcpy(&params.back()[i], &piece.bytes[i * 8], 8);
      else
        std::memcpy(&f, &piece.bytes[i * 4], 4), params.back()[i] = f;
    }
  }
  return params;
}

Trace through_serial(const Case& c, MockHost& host) {
  MockModel model({c.dtype, c.tied});
  MockPlan plan;
  configure(c, plan);
  plan.plan.world_size = host.host.world_size;
  Trace trace;
  {
    Session session(serial(), plan, host, model.model());
    for (int t = 1; t <= kSteps; ++t) {
      const MockBatch batch({8, c.micro_batch, host.host.rank, host.host.world_size}, t);
      const YokeStepResult r = session.step(batch.batch(), t, lr_at(c, t));
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

void expect_close(const std::vector<double>& a,
                  const std::vector<double>& b,
                  double relative,
                  const char* what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_NEAR(a[i], b[i], relative * std::max(1e-3, std::fabs(b[i]))) << what << " " << i;
  }
}

void expect_close(const Trace& trace, const Trace& oracle, double relative) {
  expect_close(trace.loss, oracle.loss, relative, "loss of step");
  expect_close(trace.norm, oracle.norm, 10 * relative, "gradient norm of step");
  ASSERT_EQ(trace.params.size(), oracle.params.size());
  for (size_t p = 0; p < trace.params.size(); ++p) {
    expect_close(trace.params[p], oracle.params[p], 100 * relative, "parameter element");
  }
}

class Serial : public ::testing::TestWithParam<Case> {
 protected:
  double bound() const { return GetParam().dtype == YOKE_F64 ? kFp64 : kFp32; }
};

TEST_P(Serial, EqualsThePlainLoop) {
  const Trace oracle = plain_loop(GetParam());
  ASSERT_LT(oracle.loss.back(), 0.9 * oracle.loss.front());
  MockHost host;
  expect_close(through_serial(GetParam(), host), oracle, bound());
}

TEST_P(Serial, TwoRanksEqualThePlainLoop) {
  Case c = GetParam();
  c.micro_batch = std::min<int64_t>(c.micro_batch, 4);
  const Trace oracle = plain_loop(c);
  MockWorld world(2);
  Trace traces[2];
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
        Case{.name = "adamw"},
        Case{.name = "adamw_no_clip", .clip = 0},
        Case{.name = "adamw_clip_always", .clip = 0.01},
        Case{.name = "adamw_no_decay", .weight_decay = 0},
        Case{.name = "sgd", .kind = YOKE_SGD, .clip = 0},
        Case{.name = "sgd_momentum_clip", .kind = YOKE_SGD, .momentum = 0.9, .clip = 0.5},
        Case{.name = "accumulation_2", .micro_batch = 4},
        Case{.name = "accumulation_8", .micro_batch = 1},
        Case{.name = "untied", .tied = false},
        Case{.name = "adamw_fp32", .dtype = YOKE_F32},
        Case{.name = "sgd_fp32", .kind = YOKE_SGD, .momentum = 0.9, .dtype = YOKE_F32}),
    [](const auto& info) { return std::string(info.param.name); });

// ---- State ----

TEST(SerialCheckpoint, ResumeIsBitEqualToAnUninterruptedRun) {
  const Case c{.name = "resume"};
  MockHost host;
  const Trace whole = through_serial(c, host);
  std::vector<SavedPiece> saved;
  MockModel model;
  MockPlan plan;
  {
    Session first(serial(), plan, host, model.model());
    for (int t = 1; t <= 5; ++t) first.step(MockBatch({}, t).batch(), t, lr_at(c, t));
    saved = save_state(first);
  }
  Session second(serial(), plan, host, model.model());
  load_state(second, saved);
  EXPECT_EQ(save_state(second), saved);
  for (int t = 6; t <= kSteps; ++t) {
    const MockBatch batch({}, t);
    const YokeStepResult r = second.step(batch.batch(), t, lr_at(c, t));
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
