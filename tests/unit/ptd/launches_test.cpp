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

using Launches = std::map<std::string, int>;

std::string llama(int layers) {
  return concat(R"({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": )", layers) +
         R"(, "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 192,
         "vocab_size": 1001, "hidden_act": "silu", "max_position_embeddings": 64,
         "rms_norm_eps": 1e-5, "rope_theta": 10000, "tie_word_embeddings": false})";
}

// Returns the launches of a step with a Llama of so many layers.
Launches launches_of(int layers, int micros, int32_t dtype) {
  const std::string config = llama(layers);
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

// Returns what grows with the number of layers and the number of micro-batches.
Launches launches_of_a_layer(int32_t dtype) {
  Launches launches;
  const auto add = [&](int layers, int micros, int sign) {
    for (const auto& [name, count] : launches_of(layers, micros, dtype))
      launches[name] += sign * count;
  };
  add(3, 3, 1);
  add(2, 3, -1);
  add(3, 2, -1);
  add(2, 2, 1);
  std::erase_if(launches, [](const auto& entry) { return entry.second == 0; });
  return launches;
}

TEST(Launches, OfALayerAreFew) {
  for (const int32_t dtype : {YOKE_F32, YOKE_BF16}) {
    const Launches launches = launches_of_a_layer(dtype);
    int sum = 0;
    std::string all;
    for (const auto& [name, count] : launches) {
      sum += count;
      all += concat("\n", name, ": ", count);
    }
    EXPECT_EQ(sum, 35) << all;                      // the number that ARCHITECTURE gives
    EXPECT_EQ(launches.at("multiply"), 21) << all;  // 7 matrices, forward and backward
    RecordProperty(concat("launches of dtype ", dtype), sum);
  }
}

// A whole step with the kernels of a device, emulated, and with those of the CPU.
TEST(Launches, OfADeviceGiveTheSameStep) {
  const std::string config = llama(2);
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
