// Counts what a layer launches for each micro-batch, on an emulated device. On a card, launching
// costs time wherever the kernels are short.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

#include "tests/support/device_run.hpp"
#include "tests/support/launch_counter.hpp"
#include "tests/unit/ptd/counted_step.hpp"
#include "yoke/text.hpp"

namespace yoke::ptd::testing {
namespace {

using yoke::testing::counted_llama;
using yoke::testing::Launches;

// Returns the launches of a step with a Llama of so many layers. A sequence has 64 tokens.
Launches launches_of(int layers, int micros, int sequences, int32_t dtype) {
  const std::string config = counted_llama(layers);
  const yoke::testing::EmulatedCuda cuda(/*everywhere=*/true);
  Launches counts;
  observe_second_step({.name = "one rank",
                       .micros = micros,
                       .sequences = sequences,
                       .dtype = dtype,
                       .model = config.c_str()},
                      [&](const MakeStep& step) {
                        const yoke::testing::LaunchCounter counter;
                        step();
                        counts = counter.counts();
                      });
  return counts;
}

// With few tokens in a micro-batch, and with many.
TEST(Launches, OfALayerAreFew) {
  for (const int sequences : {1, 8}) {
    for (const int32_t dtype : {YOKE_F32, YOKE_BF16}) {
      const Launches launches = yoke::testing::launches_of_a_layer(
          [&, n = sequences, type = dtype](int layers, int micros) {
            return launches_of(layers, micros, n, type);
          });
      const auto [sum, all] = yoke::testing::total_of(launches);
      EXPECT_EQ(sum, 29) << all;                      // the number that ARCHITECTURE gives
      EXPECT_EQ(launches.at("multiply"), 15) << all;  // 5 products, forward and backward
      RecordProperty(concat("launches of dtype ", dtype, ", sequences ", sequences), sum);
    }
  }
}

// Returns the difference of the parameters of two runs, in units of what the second has updated.
double distance(const Outcome& a, const Outcome& b, const Outcome& start) {
  const auto squares = [](const at::Tensor& t) { return t.square().sum().item<double>(); };
  double apart = 0, updated = 0;
  for (const auto& [key, value] : b.state) {
    if (!key.starts_with("param ")) continue;
    apart += squares(a.state.at(key) - value);
    updated += squares(value - start.state.at(key));
  }
  return std::sqrt(apart / updated);
}

// Whole steps with everything that a device has, emulated: its operators, a stream, so that the
// host reads nothing before the end of a step, and AdamW as one kernel, which in bf16 also writes
// the parameters in the compute type. They are compared with the steps of the CPU.
TEST(Launches, OfADeviceGiveTheSameRun) {
  constexpr int kSteps = 5;
  const std::string config = counted_llama(2);
  for (const auto& [dtype, loss, norm, updates] : yoke::testing::kDeviceBounds) {
    SCOPED_TRACE(dtype);
    const CountedLayout layout{
        .name = "one rank", .micros = 2, .sequences = 5, .dtype = dtype, .model = config.c_str()};
    const Outcome start = train_counted(layout, 0, /*on_device=*/false),
                  cpu = train_counted(layout, kSteps, /*on_device=*/false);
    const yoke::testing::EmulatedCuda cuda(/*everywhere=*/true);
    const Outcome ours = train_counted(layout, kSteps, /*on_device=*/true);
    yoke::testing::expect_near_cpu(ours.loss, cpu.loss, loss);
    yoke::testing::expect_near_cpu(ours.grad_norm, cpu.grad_norm, norm);
    EXPECT_LE(distance(ours, cpu, start), updates);
    EXPECT_EQ(ours.wrapped.param_bytes, cpu.wrapped.param_bytes);
  }
}

}  // namespace
}  // namespace yoke::ptd::testing
