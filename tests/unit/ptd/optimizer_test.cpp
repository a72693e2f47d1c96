#include "plugins/ptd/optim/optimizer.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "plugins/ptd/optim/grad_norm.hpp"
#include "yoke/backend.hpp"
#include "yoke/muon.h"

namespace yoke::ptd {
namespace {

// The model has two parameters with decay and one without, as one unit on one rank. The first one
// has more elements than the optimizer casts at a time.
const ModelSpec kModel{{{(1 << 20) + 50, true, true}, {33, true, true}, {21, true, false}},
                       {{0, 1, 2}}};
// A model with three hidden matrices for Muon, of 3 x 8, 9 x 4 and 5 x 5 elements, and two other
// parameters between them. It has two units.
const ModelSpec kMatrices{{{24, true, true, false, OwnStage::kNoRank, true, false, 3},
                           {33, true, true},
                           {36, true, false, false, OwnStage::kNoRank, true, false, 9},
                           {7, true, false},
                           {25, true, true, false, OwnStage::kNoRank, true, false, 5}},
                          {{0, 1, 2, 3}, {4}}};
const Comm kAlone;
constexpr Dtypes kFp64{at::kDouble, at::kDouble, at::kDouble},
    kFp32{at::kFloat, at::kFloat, at::kFloat}, kBf16{at::kBFloat16, at::kFloat, at::kBFloat16},
    kWideReduce{at::kFloat, at::kFloat, at::kDouble};

struct Fixture {
  Fixture(int32_t kind, double momentum, Dtypes dtypes)
      : Fixture(kind, momentum, dtypes, kind == YOKE_MUON ? kMatrices : kModel) {}
  Fixture(int32_t kind, double momentum, Dtypes dtypes, const ModelSpec& its_model)
      : model(its_model), state(model, make_units(model, 1, 4), 1, 0, dtypes, at::kCPU) {
    config.header = YOKE_HEADER(YokeOptimizer, YOKE_ID_OPTIMIZER);
    config.kind = kind;
    config.beta1 = 0.9;
    config.beta2 = 0.95;
    config.eps = 1e-8;
    config.momentum = momentum;
    config.weight_decay = 0.1;
    optimizer = make_optimizer(config, state, model, kAlone);
    state.params.copy_(at::sin(at::arange(state.params.numel(), state.params.options())));
  }
  YokeOptimizer config{};
  const ModelSpec& model;
  ShardState state;
  std::unique_ptr<Optimizer> optimizer;
};

// Returns gradients in the type of the master copies, rounded to values that the gradients' own
// type can represent.
at::Tensor gradient(const ShardState& state, int step) {
  return at::cos(at::arange(state.params.numel(), state.params.options()) * step)
      .to(state.grads.scalar_type())
      .to(state.params.scalar_type());
}

// Returns 1 for elements with weight decay and 0 for the others.
at::Tensor decay_mask(const ShardState& state) {
  at::Tensor mask = at::zeros_like(state.params);
  for (const FlatSpan& span : state.spans) {
    if (span.decay) mask.narrow(0, span.begin, span.count).fill_(1);
  }
  return mask;
}

// The optimizer state for the contract's formulas, which the tests compute themselves.
struct Plain {
  explicit Plain(const ShardState& state)
      : p(state.params.clone()), m(at::zeros_like(p)), v(at::zeros_like(p)) {}
  at::Tensor p, m, v;
};

void expect_same(const at::Tensor& a, const at::Tensor& b, double bound) {
  EXPECT_LE((a - b).abs().max().item<double>(), bound * b.abs().max().item<double>());
}

// Updates as on a device, where the host does not read the scale.
void update_unseen(Fixture& f, int step, double scale) {
  f.optimizer->begin_step(step, 1e-2);
  const auto number = [&](double value, at::ScalarType type) {
    return at::full({}, value, f.state.params.options().dtype(type));
  };
  f.optimizer->update_with(
      {scale < 1 ? number(1 / scale, at::kDouble) : at::Tensor(), number(0, at::kFloat)});
  f.optimizer->commit();
}

// Updates as on the CPU, where the host knows the scale.
void update_seen(Fixture& f, int step, double scale) {
  f.optimizer->begin_step(step, 1e-2);
  f.optimizer->update(scale);
  f.optimizer->commit();
}

constexpr int32_t kAdams[] = {YOKE_ADAMW, YOKE_ADAM, YOKE_ADAMW_UNCORRECTED, YOKE_ADAM_UNCORRECTED};

void check_adam(int32_t kind, Dtypes dtypes, double scale, double bound, bool unseen = false) {
  SCOPED_TRACE(kind);
  const bool in_gradient = kind == YOKE_ADAM || kind == YOKE_ADAM_UNCORRECTED;
  const bool corrects = kind == YOKE_ADAMW || kind == YOKE_ADAM;
  Fixture f(kind, 0, dtypes);
  Plain plain(f.state);
  const at::Tensor mask = decay_mask(f.state);
  for (int step = 1; step <= 5; ++step) {
    f.state.grads.copy_(gradient(f.state, step));
    if (unseen)
      update_unseen(f, step, scale);
    else
      update_seen(f, step, scale);
    at::Tensor g = gradient(f.state, step) * scale;
    if (in_gradient) {
      g = g + 0.1 * plain.p * mask;
    } else {
      plain.p = plain.p - 1e-2 * 0.1 * plain.p * mask;
    }
    plain.m = 0.9 * plain.m + 0.1 * g;
    plain.v = 0.95 * plain.v + 0.05 * g * g;
    const double c1 = corrects ? 1 - std::pow(0.9, step) : 1;
    const double c2 = corrects ? 1 - std::pow(0.95, step) : 1;
    plain.p = plain.p - 1e-2 / c1 * plain.m / (at::sqrt(plain.v) / std::sqrt(c2) + 1e-8);
  }
  expect_same(f.state.params, plain.p, bound);
  expect_same(f.optimizer->moments()[0].values, plain.m, bound);
  expect_same(f.optimizer->moments()[1].values, plain.v, bound);
  EXPECT_EQ(f.optimizer->last_step(), 5);
}

TEST(AdamW, IsTheContractsFormulaInFp64) {
  for (const int32_t kind : kAdams) {
    check_adam(kind, kFp64, 1, 1e-14);
    check_adam(kind, kFp64, 0.3, 1e-14);
  }
}

TEST(AdamW, IsTheContractsFormulaInFp32) {
  for (const int32_t kind : kAdams) {
    check_adam(kind, kFp32, 1, 2e-6);
    check_adam(kind, kFp32, 0.3, 2e-6);
  }
}

TEST(AdamW, TakesGradientsOfAnotherTypeThanTheMasterCopies) {
  for (const Dtypes& dtypes : {kBf16, kWideReduce}) {
    check_adam(YOKE_ADAMW, dtypes, 1, 2e-6);
    check_adam(YOKE_ADAMW, dtypes, 0.3, 2e-6);
    check_adam(YOKE_ADAM_UNCORRECTED, dtypes, 0.3, 2e-6);
  }
}

TEST(AdamW, IsTheSameWithItsNumbersInTensors) {
  // update_with() reads the learning rate from an fp32 tensor, so the bounds are wider.
  for (const Dtypes& dtypes : {kFp64, kFp32, kBf16, kWideReduce}) {
    check_adam(YOKE_ADAMW, dtypes, 1, 2e-6, true);
    check_adam(YOKE_ADAMW, dtypes, 0.3, 2e-6, true);
  }
  for (const Dtypes& dtypes : {kFp64, kBf16})
    check_adam(YOKE_ADAM_UNCORRECTED, dtypes, 0.3, 2e-6, true);
}

// Where the direction is close to 0, its sign depends on rounding, so these few elements are left
// out.
void check_lion(Dtypes dtypes, double scale, double bound, bool unseen = false) {
  Fixture f(YOKE_LION, 0, dtypes);
  Plain plain(f.state);
  const at::Tensor mask = decay_mask(f.state);
  at::Tensor sure = at::ones_like(plain.p, at::kBool);
  for (int step = 1; step <= 5; ++step) {
    f.state.grads.copy_(gradient(f.state, step));
    if (unseen)
      update_unseen(f, step, scale);
    else
      update_seen(f, step, scale);
    const at::Tensor g = gradient(f.state, step) * scale;
    const at::Tensor direction = 0.9 * plain.m + 0.1 * g;
    sure = sure & (direction.abs() > 1e-5);
    plain.p = plain.p - 1e-2 * 0.1 * plain.p * mask - 1e-2 * at::sign(direction);
    plain.m = 0.95 * plain.m + 0.05 * g;
  }
  EXPECT_GT(sure.to(at::kDouble).mean().item<double>(), 0.99);
  expect_same(f.state.params * sure, plain.p * sure, bound);
  expect_same(f.optimizer->moments()[0].values, plain.m, bound);
  EXPECT_EQ(f.optimizer->moments().size(), 1u);
  EXPECT_EQ(f.optimizer->last_step(), 5);
}

TEST(Lion, IsTheContractsFormula) {
  for (const double scale : {1.0, 0.3}) check_lion(kFp64, scale, 1e-14);
  for (const Dtypes& dtypes : {kFp32, kBf16, kWideReduce}) check_lion(dtypes, 0.3, 2e-6);
  for (const Dtypes& dtypes : {kFp64, kBf16}) check_lion(dtypes, 0.3, 2e-6, true);
}

// Compares with yoke/optimizer.h and yoke/muon.h, which have their own tests.
void check_muon(Dtypes dtypes, double scale, double bound, bool unseen = false) {
  Fixture f(YOKE_MUON, 0.9, dtypes);
  Plain plain(f.state);
  const auto doubles = [](const at::Tensor& t) { return t.to(at::kDouble).clone(); };
  at::Tensor p = doubles(plain.p), m = doubles(plain.m), v = doubles(plain.v);
  YokeOptimizer adamw = f.config;
  adamw.kind = YOKE_ADAMW;
  for (int step = 1; step <= 5; ++step) {
    f.state.grads.copy_(gradient(f.state, step));
    if (unseen)
      update_unseen(f, step, scale);
    else
      update_seen(f, step, scale);
    const at::Tensor grad = doubles(gradient(f.state, step)) * scale;
    for (const ShardState::UnitShard& unit : f.state.units) {
      for (const FlatLayout::Slot& slot : unit.layout.slots()) {
        const ParamSpec& spec = f.model.params[slot.param];
        const int64_t at = unit.begin + slot.offset, rows = spec.muon_rows;
        double *value = p.data_ptr<double>() + at, *g = grad.data_ptr<double>() + at;
        double *first = m.data_ptr<double>() + at, *second = v.data_ptr<double>() + at;
        const YokeUpdate rest = yoke_update_step(&adamw, step, 1e-2, spec.decay);
        if (rows == 0) {
          for (int64_t k = 0; k < slot.numel; ++k)
            value[k] = yoke_adamw(&rest.adamw, value[k], g[k], &first[k], &second[k]);
          continue;
        }
        const int64_t shape[] = {rows, slot.numel / rows};
        YokeParameter param{};
        param.shape = shape;
        param.ndim = 2;
        param.decay = spec.decay;
        std::vector<double> memory(slot.numel + yoke_orthogonalize_scratch(shape[0], shape[1]));
        const YokeMatrix matrix{&param, value, first, g, YOKE_F64, YOKE_F64};
        yoke_muon(&f.config, 1e-2, 1, &matrix, memory.data());
      }
    }
  }
  const auto of_slots = [&](const at::Tensor& all, const Moment* moment) {
    std::vector<at::Tensor> parts;
    for (const ShardState::UnitShard& unit : f.state.units) {
      for (const FlatLayout::Slot& slot : unit.layout.slots()) {
        const int64_t at = unit.begin + slot.offset;
        const at::Tensor own =
            moment == nullptr ? all.narrow(0, at, slot.numel) : moment->of(at, slot.numel);
        if (own.defined())
          parts.push_back(moment == nullptr ? own : own - all.narrow(0, at, slot.numel));
      }
    }
    return at::cat(parts);
  };
  expect_same(of_slots(f.state.params, nullptr), of_slots(p, nullptr), bound);
  const std::vector<Moment>& moments = f.optimizer->moments();
  ASSERT_EQ(moments.size(), 3u);
  for (const auto& [i, expected] : {std::pair{0, m}, {1, m}, {2, v}})
    EXPECT_LE(of_slots(expected, &moments[i]).abs().max().item<double>(), 2e-6) << i;
  EXPECT_EQ(of_slots(m, &moments[0]).numel(), 24 + 36 + 25) << "the hidden matrices";
  EXPECT_EQ(of_slots(m, &moments[1]).numel(), 33 + 7) << "the others";
  EXPECT_EQ(of_slots(v, &moments[2]).numel(), 33 + 7);
}

TEST(Muon, IsTheContractsFormula) {
  for (const double scale : {1.0, 0.3}) check_muon(kFp64, scale, 1e-13);
  for (const Dtypes& dtypes : {kFp32, kWideReduce}) {
    check_muon(dtypes, 0.3, 5e-6);
    check_muon(dtypes, 0.3, 5e-6, true);
  }
  check_muon(kFp64, 0.3, 5e-6, true);
  // The products are in bf16.
  check_muon(kBf16, 0.3, 5e-3);
  check_muon(kBf16, 0.3, 5e-3, true);
}

void check_sgd(Dtypes dtypes, double momentum, double bound, bool unseen = false) {
  Fixture f(YOKE_SGD, momentum, dtypes);
  Plain plain(f.state);
  const at::Tensor mask = decay_mask(f.state);
  for (int step = 1; step <= 5; ++step) {
    f.state.grads.copy_(gradient(f.state, step));
    if (unseen)
      update_unseen(f, step, 0.3);
    else
      update_seen(f, step, 0.3);
    plain.p = plain.p - 1e-2 * 0.1 * plain.p * mask;
    plain.m = momentum * plain.m + 0.3 * gradient(f.state, step);
    plain.p = plain.p - 1e-2 * plain.m;
  }
  expect_same(f.state.params, plain.p, bound);
}

TEST(Sgd, IsTheContractsFormula) {
  for (double momentum : {0.0, 0.9}) {
    check_sgd(kFp64, momentum, 1e-14);
    check_sgd(kBf16, momentum, 2e-6);
    check_sgd(kFp64, momentum, 2e-6, true);
    check_sgd(kBf16, momentum, 2e-6, true);
  }
}

TEST(Optimizer, ANormThatIsNotFiniteUpdatesNothingWithoutALook) {
  for (const int32_t kind :
       {YOKE_ADAMW, YOKE_ADAM, YOKE_ADAM_UNCORRECTED, YOKE_LION, YOKE_SGD, YOKE_MUON}) {
    Fixture f(kind, 0.9, kFp32);
    for (int step = 1; step <= 2; ++step) {
      f.state.grads.copy_(gradient(f.state, step));
      update_unseen(f, step, 0.5);
    }
    const at::Tensor params = f.state.params.clone();
    std::vector<at::Tensor> moments;
    for (const Moment& moment : f.optimizer->moments()) moments.push_back(moment.values.clone());
    f.state.grads[7].fill_(INFINITY);
    f.state.grads[9].fill_(NAN);
    f.state.grads[30].fill_(NAN);
    f.optimizer->begin_step(3, 1e-2);
    f.optimizer->update_with(clip_on_device(squared_norm(f.state.grads), 1.0));
    EXPECT_TRUE(at::equal(f.state.params, params)) << kind;
    for (size_t i = 0; i < moments.size(); ++i)
      EXPECT_TRUE(at::equal(f.optimizer->moments()[i].values, moments[i])) << kind;
  }
}

TEST(ClipOnDevice, IsClipScale) {
  for (const double norm : {0.0, 0.5, 1.0, 1.0 + 1e-9, 3.0, 1e20}) {
    const at::Tensor squared = at::full({}, norm * norm, at::kDouble);
    const ClipTensors clip = clip_on_device(squared, 1.0);
    const double scale = clip_scale(1.0, norm);
    EXPECT_NEAR(1 / clip.divisor.item<double>(), scale, 1e-15) << norm;
    const at::Tensor divisor = clip_divisor(scale, at::kCPU);
    EXPECT_EQ(divisor.defined(), scale < 1) << norm;
    if (scale < 1) {
      EXPECT_EQ(divisor.item<double>(), 1 / scale) << norm;
    }
    EXPECT_EQ(clip.skip.item<float>(), 0);
    EXPECT_FALSE(clip_on_device(squared, 0).divisor.defined());
  }
  // In fp16 the gradients contain the factor of the loss.
  const at::Tensor factor = at::full({}, 1024.0, at::kDouble);
  for (const double norm : {0.5, 3.0}) {
    const at::Tensor squared = at::full({}, norm * norm * 1024 * 1024, at::kDouble);
    const double scale = clip_scale(1.0, norm) / 1024;
    EXPECT_NEAR(1 / clip_on_device(squared, 1.0, factor).divisor.item<double>(), scale, 1e-15);
    EXPECT_EQ(clip_on_device(squared, 0, factor).divisor.item<double>(), 1024);
    EXPECT_EQ(clip_divisor(scale, at::kCPU).item<double>(), 1 / scale);
  }
  EXPECT_EQ(clip_divisor(2.0, at::kCPU).item<double>(), 0.5) << "a factor of the loss below 1";
  for (const double norm : {double{INFINITY}, double{NAN}})
    EXPECT_EQ(clip_on_device(at::full({}, norm, at::kDouble), 1.0).skip.item<float>(), 1);
}

TEST(Optimizer, OnlyACommittedStepCounts) {
  Fixture f(YOKE_ADAMW, 0, kFp32);
  EXPECT_EQ(f.optimizer->last_step(), 0);
  update_seen(f, 1, 1);
  f.optimizer->begin_step(2, 1e-2);
  EXPECT_EQ(f.optimizer->last_step(), 1);
  f.optimizer->restore(41);
  EXPECT_EQ(f.optimizer->last_step(), 41);
}

TEST(Optimizer, PaddingStaysZero) {
  for (const int32_t kind :
       {YOKE_ADAMW, YOKE_ADAM, YOKE_ADAMW_UNCORRECTED, YOKE_LION, YOKE_SGD, YOKE_MUON}) {
    Fixture f(kind, 0, kFp32);
    f.state.params.zero_();
    f.state.grads.zero_();
    update_seen(f, 1, 0.5);
    EXPECT_EQ(f.state.params.abs().max().item<float>(), 0) << kind;
  }
}

TEST(Optimizer, AnUnknownKindIsRefused) {
  ShardState state(kModel, make_units(kModel, 1, 4), 1, 0, kFp32, at::kCPU);
  YokeOptimizer config{};
  config.kind = 77;
  EXPECT_THROW(make_optimizer(config, state, kModel, kAlone), Error);
}

TEST(SquaredNorm, IsTheSumOfSquares) {
  for (int64_t n : {0, 1, 4095, 4096, 10007}) {
    const at::Tensor g = at::sin(at::arange(n, at::kDouble));
    EXPECT_NEAR(squared_norm(g).item<double>(), g.square().sum().item<double>(), 1e-12 * n) << n;
  }
}

// A sum in fp32 alone would lose 1e-4 here, and norms of rows in bf16 much more.
TEST(SquaredNorm, KeepsItsPrecisionInNarrowTypes) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor g = at::full({1 << 22}, 0.1, type);
    const double value = g[0].item<double>();
    EXPECT_NEAR(squared_norm(g).item<double>() / (value * value * (1 << 22)), 1, 1e-6) << type;
  }
}

}  // namespace
}  // namespace yoke::ptd
