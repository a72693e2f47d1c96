// Compares the kernel of a device, emulated, with the optimizer that LibTorch's kernels compute.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "plugins/ptd/optim/grad_norm.hpp"
#include "plugins/ptd/optim/optimizer.hpp"
#include "tests/support/launch_counter.hpp"

namespace yoke::ptd {
namespace {

const TorchKernels kKernels{
    YOKE_HEADER(TorchKernels, 0), nullptr, [](void*, const AdamWTensors& tensors) {
      cuda_runtime().adamw(tensors);
    }};
// Two parameters with decay and one without, in a unit with and in one without padding.
const ModelSpec kModel{{{203, true, true}, {33, true, true}, {21, true, false}}, {{0, 1}, {2}}};
const Comm kAlone;

YokeOptimizer of(int32_t kind) {
  YokeOptimizer config{};
  config.header = YOKE_HEADER(YokeOptimizer, YOKE_ID_OPTIMIZER);
  config.kind = kind;
  config.beta1 = 0.9;
  config.beta2 = 0.95;
  config.eps = 1e-8;
  config.weight_decay = 0.1;
  return config;
}

struct Training {
  Training(int32_t kind, const Dtypes& dtypes, const TorchKernels* kernels)
      : state(kModel, make_units(kModel, 1, 4), 1, 0, dtypes, at::kCPU) {
    const YokeOptimizer config = of(kind);
    if (kernels != nullptr && dtypes.compute != dtypes.master)
      state.copies = at::empty_like(state.params, dtypes.compute);
    EXPECT_EQ(uses_device_adamw(config, dtypes, kernels), kernels != nullptr);
    optimizer = make_optimizer(config, state, kModel, kAlone, kernels);
    state.params.copy_(at::sin(at::arange(state.params.numel(), state.params.options())));
  }

  // clip: of the gradient norm. on_device: the host does not know the norm.
  void step(int step, double clip, bool on_device) {
    const auto wide = state.params.options().dtype(at::kDouble);
    state.grads.copy_(at::cos(at::arange(state.params.numel(), wide) * step));
    const at::Tensor squared = squared_norm(state.grads);
    optimizer->begin_step(step, 0.0078125);  // a learning rate that fp32 represents
    if (on_device) {
      optimizer->update_with(clip_on_device(squared, clip));
    } else {
      optimizer->update(yoke_clip_scale(clip, std::sqrt(squared.item<double>())));
    }
    optimizer->commit();
  }

  ShardState state;
  std::unique_ptr<Optimizer> optimizer;
};

void expect_close(const at::Tensor& a, const at::Tensor& b, double bound) {
  EXPECT_LE((a - b).abs().max().item<double>(), bound * b.abs().max().item<double>());
}

constexpr Dtypes kFp64{at::kDouble, at::kDouble, at::kDouble};
constexpr Dtypes kNarrow[] = {{at::kFloat, at::kFloat, at::kFloat},
                              {at::kBFloat16, at::kFloat, at::kFloat},
                              {at::kHalf, at::kFloat, at::kFloat},
                              {at::kBFloat16, at::kFloat, at::kBFloat16},
                              {at::kFloat, at::kFloat, at::kBFloat16}};

void compare(int32_t kind, const Dtypes& dtypes, double bound) {
  for (const bool on_device : {false, true}) {
    for (const double clip : {0.0, 2.0}) {
      Training ours(kind, dtypes, &kKernels), expected(kind, dtypes, nullptr);
      for (int step = 1; step <= 5; ++step) {
        ours.step(step, clip, on_device);
        expected.step(step, clip, false);
      }
      expect_close(ours.state.params, expected.state.params, bound);
      for (const int i : {0, 1})
        expect_close(
            ours.optimizer->moments()[i].values, expected.optimizer->moments()[i].values, bound);
      EXPECT_EQ(ours.optimizer->last_step(), 5);
      if (ours.state.copies.defined()) {
        EXPECT_TRUE(at::equal(ours.state.copies, ours.state.params.to(dtypes.compute)));
      }
    }
  }
}

TEST(DeviceAdamW, IsTheOptimizerOfTheCpu) {
  const yoke::testing::EmulatedCuda cuda;
  for (const int32_t kind :
       {YOKE_ADAMW, YOKE_ADAM, YOKE_ADAMW_UNCORRECTED, YOKE_ADAM_UNCORRECTED}) {
    SCOPED_TRACE(kind);
    compare(kind, kFp64, 1e-14);
    for (const Dtypes& dtypes : kNarrow) compare(kind, dtypes, 1e-6);
  }
}

TEST(DeviceAdamW, ChangesNothingIfTheNormIsNotFinite) {
  const yoke::testing::EmulatedCuda cuda;
  Training training(YOKE_ADAMW, kNarrow[1], &kKernels);
  training.step(1, 1.0, true);
  const auto copy = [](const at::Tensor& t) { return t.clone(); };
  const at::Tensor params = copy(training.state.params), copies = copy(training.state.copies),
                   first = copy(training.optimizer->moments()[0].values),
                   second = copy(training.optimizer->moments()[1].values);
  training.state.grads[7].fill_(INFINITY);
  training.state.grads[9].fill_(NAN);
  training.optimizer->begin_step(2, 1e-2);
  training.optimizer->update_with(clip_on_device(squared_norm(training.state.grads), 1.0));
  EXPECT_TRUE(at::equal(training.state.params, params));
  EXPECT_TRUE(at::equal(training.state.copies, copies));
  EXPECT_TRUE(at::equal(training.optimizer->moments()[0].values, first));
  EXPECT_TRUE(at::equal(training.optimizer->moments()[1].values, second));
}

TEST(DeviceAdamW, BeginsAStepWithCopiesOfItsCoefficientsAlone) {
  const yoke::testing::EmulatedCuda cuda;
  Training training(YOKE_ADAMW, kNarrow[1], &kKernels);
  const yoke::testing::LaunchCounter counter;
  training.optimizer->begin_step(1, 1e-2);
  EXPECT_EQ(counter.counts(), (yoke::testing::Launches{{"aten::copy_", 3}}));
}

TEST(DeviceAdamW, IsNotForOtherOptimizersAndWiderGradients) {
  const Dtypes wide{at::kFloat, at::kFloat, at::kDouble};
  EXPECT_FALSE(uses_device_adamw(of(YOKE_ADAMW), wide, &kKernels));
  EXPECT_FALSE(uses_device_adamw(of(YOKE_LION), kNarrow[0], &kKernels));
  EXPECT_FALSE(uses_device_adamw(of(YOKE_ADAMW), kNarrow[0], nullptr));
}

}  // namespace
}  // namespace yoke::ptd
