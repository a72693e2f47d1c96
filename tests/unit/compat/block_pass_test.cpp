// Runs passes over a model of three blocks that counts what is kept, and compares their results
// with the same model without callbacks.
#include "sdk/compat/block_pass.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "sdk/compat/parameters.hpp"
#include "tests/support/mock_batch.hpp"
#include "tests/support/mock_host.hpp"
#include "tests/support/mock_model.hpp"

namespace yoke::compat {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using yoke::testing::MockBatch;
using yoke::testing::MockHost;
using yoke::testing::MockModel;

constexpr double kLossGrad = 0.25;

FlatLayout layout_of(const YokeModelSummary& summary) {
  std::vector<Slot> slots = slots_of(summary, Names{});
  int64_t size = 0;
  for (Slot& slot : slots) {
    slot.begin = size;
    slot.end = size += elements(summary, slot.params[0]);
  }
  return {summary, slots, size};
}

// A pass over a model with parameters, and what it has reported.
struct Rig {
  explicit Rig(std::vector<RecomputedUnit> units)
      : layout(layout_of(model.summary())),
        parameters(model.model(), layout, at::TensorOptions().dtype(at::kDouble), {}),
        pass(model.model(),
             host.host,
             std::move(units),
             {[this](uint64_t) {
                saved.push_back(model.log().live_saved);
                tensors.push_back(model.log().live_tensors);
              },
              [this](int64_t p, const at::Tensor& gradient) {
                const at::Tensor flat = gradient.reshape({-1});
                for (int64_t i = 0; i < flat.numel(); ++i)
                  values.grads[p][i] += flat[i].item<double>();
              }}) {
    clear();
  }
  void clear() {
    values = model.initial_values();
    model.log().calls.clear();
    saved.clear();
    tensors.clear();
  }
  const YokeMicroBatch& micro() const { return *batch.batch().micros[0]; }
  BlockPass::Result train() { return pass.train(micro(), kLossGrad); }

  void expect_plain(const BlockPass::Result& result) const {
    MockModel::Values plain = model.initial_values();
    model.add_micro_batch(micro(), kLossGrad, plain);
    EXPECT_NEAR(result.loss / plain.loss_sum, 1, 1e-12);
    EXPECT_EQ(result.targets, plain.loss_weight);
    for (size_t p = 0; p < plain.grads.size(); ++p) {
      for (size_t i = 0; i < plain.grads[p].size(); ++i)
        EXPECT_NEAR(values.grads[p][i], plain.grads[p][i], 1e-14) << p << ", " << i;
    }
  }
  void expect_nothing_is_kept() {
    EXPECT_EQ(model.log().live_saved, 0);
    EXPECT_EQ(model.log().live_tensors, 0);
  }

  MockModel model;
  MockHost host;
  const MockBatch batch{MockBatch::Layout{}, 1};
  const FlatLayout layout;
  const Parameters parameters;
  MockModel::Values values;             // gradients that the model has reported
  std::vector<int64_t> saved, tensors;  // what is kept before each forward of a block
  BlockPass pass;
};

TEST(BlockPass, TrainsLikeTheModelWithoutCallbacks) {
  Rig rig({});
  rig.expect_plain(rig.train());
  rig.expect_nothing_is_kept();
  EXPECT_THAT(rig.model.log().calls,
              ElementsAre("forward embed",
                          "forward mlp",
                          "forward head",
                          "backward head",
                          "backward mlp",
                          "backward embed"));
  EXPECT_THAT(rig.saved, ElementsAre(0, 1, 2));
  EXPECT_THAT(rig.tensors, ElementsAre(0, 1, 2));
}

// The block keeps its input alone until its backward.
TEST(BlockPass, RunsARecomputedBlockAgainBeforeItsBackward) {
  Rig rig({{1, 1}});
  rig.expect_plain(rig.train());
  rig.expect_nothing_is_kept();
  EXPECT_THAT(rig.model.log().calls,
              ElementsAre("forward embed",
                          "forward mlp",
                          "forward head",
                          "backward head",
                          "forward mlp",
                          "backward mlp",
                          "backward embed"));
  EXPECT_EQ(rig.saved, (std::vector<int64_t>{0, 1, 1, 1}));
  EXPECT_EQ(std::vector<int64_t>(rig.tensors.begin(), rig.tensors.begin() + 3),
            (std::vector<int64_t>{0, 1, 2}));
}

// Inside of the unit no input is kept, so only the output of the unit is there before the head.
TEST(BlockPass, RunsARecomputedUnitAgainAsAWhole) {
  Rig rig({{0, 1}});
  rig.expect_plain(rig.train());
  rig.expect_nothing_is_kept();
  EXPECT_THAT(rig.model.log().calls,
              ElementsAre("forward embed",
                          "forward mlp",
                          "forward head",
                          "backward head",
                          "forward embed",
                          "forward mlp",
                          "backward mlp",
                          "backward embed"));
  EXPECT_EQ(rig.saved, (std::vector<int64_t>{0, 0, 0, 0, 1}));
  EXPECT_EQ(std::vector<int64_t>(rig.tensors.begin(), rig.tensors.begin() + 3),
            (std::vector<int64_t>{0, 1, 1}));
}

TEST(BlockPass, KeepsOneTensorInAnEvaluation) {
  Rig rig({{1, 1}});
  const BlockPass::Result trained = rig.train();
  rig.clear();
  const BlockPass::Result result = rig.pass.evaluate(rig.micro());
  EXPECT_EQ(result.loss, trained.loss);
  EXPECT_EQ(result.targets, trained.targets);
  EXPECT_THAT(rig.model.log().calls, ElementsAre("forward embed", "forward mlp", "forward head"));
  EXPECT_THAT(rig.saved, ElementsAre(0, 0, 0));
  EXPECT_THAT(rig.tensors, ElementsAre(0, 1, 1));
  rig.expect_nothing_is_kept();
}

TEST(BlockPass, KeepsNothingAfterAFailureAndCanRunAgain) {
  for (const char* call : {"forward embed",
                           "forward mlp",
                           "forward head",
                           "backward head",
                           "backward mlp",
                           "backward embed"}) {
    Rig rig({{1, 1}});
    rig.model.fail_at(call, 0);
    try {
      rig.train();
      FAIL() << call;
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), HasSubstr(call));
    }
    rig.expect_nothing_is_kept();
    rig.clear();
    rig.expect_plain(rig.train());
  }
}

TEST(BlockPass, StopsBeforeAnyBlockIfTheHostCancels) {
  for (int blocks = 0; blocks < 7; ++blocks) {
    Rig rig({{1, 1}});
    rig.host.cancel_after = blocks;
    try {
      rig.train();
      FAIL() << blocks;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), YOKE_CANCELLED);
    }
    rig.expect_nothing_is_kept();
  }
}

}  // namespace
}  // namespace yoke::compat
