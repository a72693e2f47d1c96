#include "tests/support/mock_loop.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/mock_batch.hpp"
#include "tests/support/mock_model.hpp"

namespace yoke::testing {
namespace {

constexpr double kLr = 0.05;

void expect_close(const std::vector<double>& a,
                  const std::vector<double>& b,
                  double relative,
                  const char* what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_NEAR(a[i], b[i], relative * std::max(1e-3, std::fabs(b[i]))) << what << " " << i;
  }
}

// An element of a parameter and its moments.
struct Element {
  double &x, &m, &s;
};

// Updates an element in step t. g: its gradient.
void update(const MockRun& run, bool decays, int t, double g, const Element& element) {
  auto& [x, m, s] = element;
  const double lr = run.lr_at(t), decay = decays ? run.weight_decay * x : 0;
  if (run.kind == YOKE_ADAM || run.kind == YOKE_ADAM_UNCORRECTED) {
    g += decay;
  } else {
    x -= lr * decay;
  }
  if (run.kind == YOKE_SGD) {
    m = run.momentum * m + g;
    x -= lr * m;
    return;
  }
  if (run.kind == YOKE_LION) {
    const double direction = 0.9 * m + (1 - 0.9) * g;
    if (direction != 0) x -= std::copysign(lr, direction);
    m += (1 - 0.95) * (g - m);
    return;
  }
  const bool corrects = run.kind == YOKE_ADAMW || run.kind == YOKE_ADAM;
  m += (1 - 0.9) * (g - m);
  s += (1 - 0.95) * (g * g - s);
  const double m_hat = corrects ? m / (1 - std::pow(0.9, t)) : m;
  const double s_hat = corrects ? s / (1 - std::pow(0.95, t)) : s;
  x -= lr * m_hat / (std::sqrt(s_hat) + 1e-8);
}

}  // namespace

void PrintTo(const MockRun& run, std::ostream* out) {
  *out << run.name;
}

double MockRun::lr_at(int step) const {
  return (kind == YOKE_SGD ? 40 : 1) * kLr / std::sqrt(step);
}

void MockRun::configure(MockPlan& plan) const {
  plan.optimizer.kind = kind;
  plan.optimizer.momentum = momentum;
  plan.optimizer.weight_decay = weight_decay;
  plan.optimizer.clip = clip;
  plan.plan.param_dtype = dtype;
  plan.plan.reduce_dtype = dtype == YOKE_BF16 ? YOKE_F32 : dtype;
}

MockTrace plain_mock_loop(const MockRun& run) {
  const MockModel model({YOKE_F64, run.tied});
  MockModel::Values v = model.initial_values();
  auto m = v.grads, s = v.grads;  // gradients are zero and have the right shapes
  MockTrace trace;
  for (int t = 1; t <= MockRun::kSteps; ++t) {
    const MockBatch batch({8, 8}, t);  // one micro-batch is the whole batch
    for (auto& g : v.grads) std::fill(g.begin(), g.end(), 0.0);
    v.loss_sum = 0;
    model.add_micro_batch(*batch.batch().micros[0], 1 / batch.batch().token_weight, v);
    double squares = 0;
    for (const auto& grad : v.grads) {
      for (double g : grad) squares += g * g;
    }
    const double norm = std::sqrt(squares);
    const double scale = run.clip > 0 && run.clip < norm + 1e-6 ? run.clip / (norm + 1e-6) : 1;
    for (size_t p = 0; p < v.params.size(); ++p) {
      const YokeParameter& info = *model.summary().params[p];
      for (size_t i = 0; info.trainable && i < v.params[p].size(); ++i) {
        const double g = v.grads[p][i] * scale;
        update(run, info.decay != 0, t, g, {v.params[p][i], m[p][i], s[p][i]});
      }
    }
    trace.loss.push_back(v.loss_sum / batch.batch().token_weight);
    trace.norm.push_back(norm);
  }
  trace.params = v.params;
  return trace;
}

void expect_close(const MockTrace& trace, const MockTrace& oracle, double relative) {
  expect_close(trace.loss, oracle.loss, relative, "loss of step");
  expect_close(trace.norm, oracle.norm, 10 * relative, "gradient norm of step");
  ASSERT_EQ(trace.params.size(), oracle.params.size());
  for (size_t p = 0; p < trace.params.size(); ++p) {
    expect_close(trace.params[p], oracle.params[p], 100 * relative, "parameter element");
  }
}

}  // namespace yoke::testing
