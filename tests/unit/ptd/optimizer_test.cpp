#include "plugins/ptd/optim/optimizer.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "plugins/ptd/optim/grad_norm.hpp"

namespace yoke::ptd {
namespace {

// Two parameters with decay and one without, as one unit on one rank.
const ModelSpec kModel{{{50, true, true}, {33, true, true}, {21, true, false}}, {{0, 1, 2}}};

struct Fixture {
  Fixture(int32_t kind, double momentum, at::ScalarType dtype)
      : state(kModel, make_units(kModel, 1, 4), 1, 0, at::TensorOptions().dtype(dtype)) {
    config.header = YOKE_HEADER(YokeOptimizer, YOKE_ID_OPTIMIZER);
    config.kind = kind;
    config.beta1 = 0.9;
    config.beta2 = 0.95;
    config.eps = 1e-8;
    config.momentum = momentum;
    config.weight_decay = 0.1;
    optimizer = make_optimizer(config, state);
    state.params.copy_(at::sin(at::arange(state.params.numel(), dtype)));
  }
  YokeOptimizer config{};
  ShardState state;
  std::unique_ptr<Optimizer> optimizer;
};

at::Tensor gradient(const ShardState& state, int step) {
  return at::cos(at::arange(state.params.numel(), state.params.options()) * step);
}

// Which elements have weight decay, as 1 or 0.
at::Tensor decay_mask(const ShardState& state) {
  at::Tensor mask = at::zeros_like(state.params);
  for (const ShardState::Range& range : state.ranges) {
    if (range.decay) mask.narrow(0, range.begin, range.count).fill_(1);
  }
  return mask;
}

// The contract's formulas, written out.
struct Plain {
  explicit Plain(const ShardState& state)
      : p(state.params.clone()), m(at::zeros_like(p)), v(at::zeros_like(p)) {}
  at::Tensor p, m, v;
};

void expect_same(const at::Tensor& a, const at::Tensor& b, double bound) {
  EXPECT_LE((a - b).abs().max().item<double>(), bound * b.abs().max().item<double>());
}

void check_adamw(at::ScalarType dtype, double scale, double bound) {
  Fixture f(YOKE_ADAMW, 0, dtype);
  Plain plain(f.state);
  const at::Tensor mask = decay_mask(f.state);
  for (int step = 1; step <= 5; ++step) {
    f.state.grads.copy_(gradient(f.state, step));
    f.optimizer->update(step, 1e-2, scale);
    const at::Tensor g = gradient(f.state, step) * scale;
    plain.p = plain.p - 1e-2 * 0.1 * plain.p * mask;
    plain.m = 0.9 * plain.m + 0.1 * g;
    plain.v = 0.95 * plain.v + 0.05 * g * g;
    const double c1 = 1 - std::pow(0.9, step), c2 = 1 - std::pow(0.95, step);
    plain.p = plain.p - 1e-2 / c1 * plain.m / (at::sqrt(plain.v) / std::sqrt(c2) + 1e-8);
  }
  expect_same(f.state.params, plain.p, bound);
  expect_same(f.optimizer->moments()[0].values, plain.m, bound);
  expect_same(f.optimizer->moments()[1].values, plain.v, bound);
  EXPECT_EQ(f.optimizer->step(), 5);
}

TEST(AdamW, IsTheContractsFormulaInFp64) {
  check_adamw(at::kDouble, 1, 1e-14);
  check_adamw(at::kDouble, 0.3, 1e-14);
}

TEST(AdamW, IsTheContractsFormulaInFp32) {
  check_adamw(at::kFloat, 1, 2e-6);
  check_adamw(at::kFloat, 0.3, 2e-6);
}

TEST(Sgd, IsTheContractsFormula) {
  for (double momentum : {0.0, 0.9}) {
    Fixture f(YOKE_SGD, momentum, at::kDouble);
    Plain plain(f.state);
    const at::Tensor mask = decay_mask(f.state);
    for (int step = 1; step <= 5; ++step) {
      f.state.grads.copy_(gradient(f.state, step));
      f.optimizer->update(step, 1e-2, 0.3);
      plain.p = plain.p - 1e-2 * 0.1 * plain.p * mask;
      plain.m = momentum * plain.m + 0.3 * gradient(f.state, step);
      plain.p = plain.p - 1e-2 * plain.m;
    }
    expect_same(f.state.params, plain.p, 1e-14);
  }
}

TEST(Optimizer, PaddingStaysZero) {
  Fixture f(YOKE_ADAMW, 0, at::kFloat);
  f.state.params.zero_();
  f.state.grads.zero_();
  f.optimizer->update(1, 1e-2, 0.5);
  EXPECT_EQ(f.state.params.abs().max().item<float>(), 0);
}

TEST(Optimizer, AnUnknownKindIsRefused) {
  ShardState state(kModel, make_units(kModel, 1, 4), 1, 0, at::TensorOptions().dtype(at::kFloat));
  YokeOptimizer config{};
  config.kind = 77;
  EXPECT_THROW(make_optimizer(config, state), Error);
}

TEST(SquaredNorm, IsTheSumOfSquares) {
  for (int64_t n : {0, 1, 4095, 4096, 10007}) {
    const at::Tensor g = at::sin(at::arange(n, at::kDouble));
    EXPECT_NEAR(squared_norm(g).item<double>(), g.square().sum().item<double>(), 1e-12 * n) << n;
  }
}

// A sum in fp32 alone would lose 1e-4 here.
TEST(SquaredNorm, KeepsItsPrecisionInFp32) {
  const at::Tensor g = at::full({1 << 22}, 0.1f);
  const double expected = double{0.1f} * 0.1f * (1 << 22);
  EXPECT_NEAR(squared_norm(g).item<double>() / expected, 1, 1e-6);
}

}  // namespace
}  // namespace yoke::ptd
