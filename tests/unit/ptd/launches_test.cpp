// Counts what a layer launches for each micro-batch, on an emulated device. On a card, launching
// costs time wherever the kernels are short.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/support/launch_counter.hpp"
#include "tests/unit/ptd/counted_step.hpp"
#include "yoke/text.hpp"

namespace yoke::ptd::testing {
namespace {

using yoke::testing::counted_llama;
using yoke::testing::Launches;

// Returns the launches of a step with a Llama of so many layers.
Launches launches_of(int layers, int micros, int32_t dtype) {
  const std::string config = counted_llama(layers);
  const yoke::testing::EmulatedCuda cuda(/*everywhere=*/true);
  Launches counts;
  observe_second_step(
      {.name = "one rank", .micros = micros, .dtype = dtype, .model = config.c_str()},
      [&](const MakeStep& step) {
        const yoke::testing::LaunchCounter counter;
        step();
        counts = counter.counts();
      });
  return counts;
}

TEST(Launches, OfALayerAreFew) {
  for (const int32_t dtype : {YOKE_F32, YOKE_BF16}) {
    const Launches launches = yoke::testing::launches_of_a_layer(
        [&, type = dtype](int layers, int micros) { return launches_of(layers, micros, type); });
    const auto [sum, all] = yoke::testing::total_of(launches);
    EXPECT_EQ(sum, 29) << all;                      // the number that ARCHITECTURE gives
    EXPECT_EQ(launches.at("multiply"), 15) << all;  // 5 products, forward and backward
    RecordProperty(concat("launches of dtype ", dtype), sum);
  }
}

// A whole step with the kernels of a device, emulated, and with those of the CPU.
TEST(Launches, OfADeviceGiveTheSameStep) {
  const std::string config = counted_llama(2);
  for (const auto& [dtype, bound] :
       {std::pair{YOKE_F64, 1e-12}, {YOKE_F32, 1e-5}, {YOKE_BF16, 1e-2}}) {
    const auto second_step = [&, type = dtype] {
      YokeStepResult result{};
      observe_second_step({.name = "one rank", .micros = 3, .dtype = type, .model = config.c_str()},
                          [&](const MakeStep& step) { result = step(); });
      return result;
    };
    const YokeStepResult expected = second_step();
    const yoke::testing::EmulatedCuda cuda(/*everywhere=*/true);
    const YokeStepResult got = second_step();
    EXPECT_NEAR(got.loss_sum / expected.loss_sum, 1, bound) << dtype;
    EXPECT_NEAR(got.grad_norm / expected.grad_norm, 1, bound) << dtype;
    EXPECT_EQ(got.loss_weight, expected.loss_weight);
  }
}

}  // namespace
}  // namespace yoke::ptd::testing
