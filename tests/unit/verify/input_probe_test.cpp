#include "core/verify/input_probe.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/nn/module.h>

#include <cmath>

namespace yoke {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

TorchInputs inputs(const std::vector<int64_t>& tokens, int64_t sequences, int64_t first_position) {
  const int64_t width = static_cast<int64_t>(tokens.size()) / sequences;
  const at::Tensor ids = at::tensor(tokens, at::kLong).view({sequences, width});
  const at::Tensor row = at::arange(first_position, first_position + width, at::kLong);
  return {{"tokens", ids}, {"positions", row.expand({sequences, width})}, {"targets", ids}};
}

TEST(Fingerprints, OfSlicesAddUpToTheFingerprintOfTheSequence) {
  const auto whole = fingerprints(inputs({1, 2, 3, 4, 5, 6, 7, 8}, 2, 0)).value();
  const auto left = fingerprints(inputs({1, 2, 5, 6}, 2, 0)).value();
  const auto right = fingerprints(inputs({3, 4, 7, 8}, 2, 2)).value();
  EXPECT_THAT(whole, ElementsAre(left[0] + right[0], left[1] + right[1]));
}

TEST(Fingerprints, DependOnOrderContentsAndPositions) {
  const auto whole = fingerprints(inputs({1, 2, 3}, 1, 0)).value();
  EXPECT_NE(fingerprints(inputs({2, 1, 3}, 1, 0)).value(), whole);
  EXPECT_NE(fingerprints(inputs({1, 2, 3}, 1, 1)).value(), whole);
}

TEST(Fingerprints, OfOtherInputsCoverEveryByteOfEverySample) {
  const at::Tensor images = at::tensor({1.f, 2.f, 3.f, 4.f}).view({2, 2});
  const at::Tensor labels = at::tensor({7, 8}, at::kLong);
  const auto prints = fingerprints({{"image", images}, {"label", labels}}).value();
  ASSERT_THAT(prints, SizeIs(2));
  EXPECT_NE(prints[0], prints[1]);
  const at::Tensor other = at::tensor({7, 9}, at::kLong);
  const auto changed = fingerprints({{"image", images}, {"label", other}}).value();
  EXPECT_EQ(changed[0], prints[0]);
  EXPECT_NE(changed[1], prints[1]);
}

// A model of one block: y = sum(w * tokens).
class ProbedModel : public ::testing::Test {
 protected:
  ProbedModel() {
    w.requires_grad_(true);
    const auto module = std::make_shared<torch::nn::Module>();
    list.blocks.push_back({"only", module, [this](const at::Tensor&, const TorchInputs& in) {
                             return (w * input(in, "tokens")).sum();
                           }});
    list.loss_weight = [](const TorchInputs& in) {
      return static_cast<double>(input(in, "targets").numel());
    };
    probe.attach(list);
  }
  at::Tensor run(const TorchInputs& in) { return list.blocks[0].forward({}, in); }

  at::Tensor w = at::full({1}, 2.0);
  BlockList list;
  InputProbe probe;
};

TEST_F(ProbedModel, ReportsInputsAndScales) {
  probe.start();
  run(inputs({1, 2}, 1, 0)).backward(at::scalar_tensor(0.25));
  run(inputs({3, 4, 5, 6}, 2, 0)).backward(at::scalar_tensor(0.5));
  RankReport report;
  probe.stop(report);
  EXPECT_THAT(report.received, SizeIs(3));
  ASSERT_THAT(report.losses, SizeIs(2));
  EXPECT_EQ(report.losses[0].sum, 6);
  EXPECT_EQ(report.losses[0].weight, 2);
  EXPECT_EQ(report.losses[0].scale, 0.25);
  EXPECT_EQ(report.losses[1].scale, 0.5);
  EXPECT_FALSE(report.unreadable);
}

TEST_F(ProbedModel, ReportsARecomputedForwardOnce) {
  probe.start();
  const TorchInputs in = inputs({1, 2}, 1, 0);
  {
    const at::NoGradGuard without;
    run(in);
  }
  run(in);
  RankReport report;
  probe.stop(report);
  EXPECT_THAT(report.received, SizeIs(1));
  EXPECT_THAT(report.losses, SizeIs(1));
}

TEST_F(ProbedModel, ReportsNothingOutsideOfAStep) {
  run(inputs({1, 2}, 1, 0));
  probe.start();
  RankReport report;
  probe.stop(report);
  run(inputs({1, 2}, 1, 0)).backward();
  EXPECT_THAT(report.received, SizeIs(0));
  EXPECT_THAT(report.losses, SizeIs(0));
}

}  // namespace
}  // namespace yoke
