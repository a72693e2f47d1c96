// The mock model is part of an oracle, so this test checks its gradients by central differences.
#include "tests/support/mock_model.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/mock_batch.hpp"

namespace yoke::testing {
namespace {

double loss_of(const MockModel& model, MockModel::Values values, const YokeBatch& batch) {
  values.loss_sum = 0;
  for (uint64_t m = 0; m < batch.num_micros; ++m)
    model.add_micro_batch(*batch.micros[m], 0, values);
  return values.loss_sum;
}

TEST(MockModel, GradientsEqualCentralDifferences) {
  for (bool tied : {true, false}) {
    const MockModel model({YOKE_F64, tied});
    const MockBatch batch({4, 2}, 1);
    MockModel::Values values = model.initial_values();
    for (uint64_t m = 0; m < 2; ++m) model.add_micro_batch(*batch.batch().micros[m], 1.0, values);
    for (size_t p = 0; p < values.params.size(); ++p) {
      if (!model.summary().params[p]->trainable) continue;
      for (size_t i = 0; i < values.params[p].size(); ++i) {
        const double h = 1e-5;
        MockModel::Values up = values, down = values;
        up.params[p][i] += h;
        down.params[p][i] -= h;
        const double slope =
            (loss_of(model, up, batch.batch()) - loss_of(model, down, batch.batch())) / (2 * h);
        EXPECT_NEAR(values.grads[p][i], slope, 1e-8 * (1 + std::fabs(slope)))
            << model.summary().params[p]->name.data << "[" << i << "], tied " << tied;
      }
    }
  }
}

TEST(MockBatch, EveryLayoutSeesTheSameSamplesAndWeight) {
  const MockBatch whole({8, 8}, 3);
  const YokeInput& all = whole.batch().micros[0]->inputs[0];
  for (int32_t rank = 0; rank < 2; ++rank) {
    const MockBatch part({8, 2, rank, 2}, 3);
    ASSERT_EQ(part.batch().num_micros, 2u);
    EXPECT_EQ(part.batch().token_weight, whole.batch().token_weight);
    for (int64_t a = 0; a < 2; ++a) {
      const auto* tokens = data<int64_t>(part.batch().micros[a]->inputs[0].tensor);
      const auto* expected = data<int64_t>(all.tensor) + (a * 4 + rank * 2) * 3;
      for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(tokens[i], expected[i]);
    }
  }
}

}  // namespace
}  // namespace yoke::testing
