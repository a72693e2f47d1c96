#include "core/model/torch_model.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/nn/module.h>

#include <limits>

#include "tests/unit/model/neutral_driver.hpp"
#include "tests/unit/model/odd_model.hpp"

namespace yoke {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(TorchModelHostTest, DescribesParametersAndBlocks) {
  const YokeModelSummary& s = host.summary();
  std::vector<std::string> names, blocks;
  std::vector<int> trainable, decay;
  for (uint64_t i = 0; i < s.num_params; ++i) {
    names.emplace_back(view(s.params[i]->name));
    trainable.push_back(s.params[i]->trainable);
    decay.push_back(s.params[i]->decay);
    EXPECT_EQ(s.params[i]->dtype, YOKE_F64);
  }
  for (uint64_t b = 0; b < s.num_blocks; ++b) blocks.emplace_back(view(s.blocks[b]->name));
  EXPECT_THAT(names,
              ElementsAre("embedding.weight", "layer.weight", "layer.unused", "layer.frozen"));
  EXPECT_THAT(trainable, ElementsAre(1, 1, 1, 0));
  EXPECT_THAT(decay, ElementsAre(1, 1, 0, 0));
  EXPECT_THAT(blocks, ElementsAre("embedding", "layer", "head"));
  ASSERT_EQ(s.blocks[2]->num_params, 1u);
  EXPECT_EQ(s.blocks[2]->params[0], 0);  // tied
  EXPECT_EQ(s.params[1]->ndim, 2);
  EXPECT_EQ(s.params[1]->shape[1], kDim);
}

TEST_F(TorchModelHostTest, HasNoTensorParallelHintsUnlessTheModelGivesThem) {
  for (uint64_t i = 0; i < host.summary().num_params; ++i)
    EXPECT_EQ(host.summary().params[i]->tp_cut, 0);
  EXPECT_EQ(host.summary().seq_len, 0);
}

TEST(TorchModelHost, PassesOnWhatMayBeCut) {
  BlockList list = odd_blocks();
  list.seq_len = 3;
  list.tp = [](const std::string& name) {
    return name == "layer.weight" ? TpHint::along(1, 2) : TpHint::whole();
  };
  const TorchModelHost host(std::move(list), YOKE_F64, 7, true);
  const YokeModelSummary& s = host.summary();
  EXPECT_EQ(s.seq_len, 3);
  EXPECT_EQ(s.params[0]->tp_cut, YOKE_TP_WHOLE);
  EXPECT_EQ(s.params[1]->tp_cut, 2);
  EXPECT_EQ(s.params[1]->tp_parts, 2);
}

TEST_F(TorchModelHostTest, MakesInitialValuesOfAnyRange) {
  std::vector<float> part(5), constant(2);
  YokeError err = make_error();
  ASSERT_EQ(host.model().init_param(host.model().ctx, 0, 3, 5, part.data(), &err), YOKE_OK);
  for (size_t i = 0; i < part.size(); ++i)
    EXPECT_EQ(part[i], static_cast<float>(driver.memory(0)[3 + i]));
  ASSERT_EQ(host.model().init_param(host.model().ctx, 3, 0, 2, constant.data(), &err), YOKE_OK);
  EXPECT_THAT(constant, Each(0.25f));
  EXPECT_EQ(host.model().init_param(host.model().ctx, 0, 20, 5, part.data(), &err),
            YOKE_INVALID_ARGUMENT);
  EXPECT_THAT(err.text, HasSubstr("embedding.weight"));
  EXPECT_EQ(host.model().init_param(host.model().ctx, 9, 0, 1, part.data(), &err),
            YOKE_INVALID_ARGUMENT);
  EXPECT_THAT(err.text, HasSubstr("allowed: 0 to 3"));
}

TEST_F(TorchModelHostTest, GivesLossAndGradientsOfPlainAutograd) {
  double expected = 0;
  oracle(1, &expected);
  driver.bind_all();
  EXPECT_NEAR(driver.step(batch.micro(), 0.125), expected, 1e-14);
  expect_oracle_grads(0.125);
}

TEST_F(TorchModelHostTest, ReportsEveryTrainableParameterOncePerBlock) {
  driver.bind_all();
  driver.step(batch.micro(), 1);
  EXPECT_THAT(driver.arrivals, ElementsAre(2, 1, 1, 0));  // tied: once per block; frozen: never
  EXPECT_THAT(driver.grads[2], Each(0));                  // the loss does not depend on it
}

TEST_F(TorchModelHostTest, ReportsTheTargetCountOfTheLoss) {
  driver.bind_all();
  const ManagedTensor x(driver.forward(0, batch.micro(), nullptr, false).carry_out);
  const ManagedTensor y(driver.forward(1, batch.micro(), &x->tensor, false).carry_out);
  const YokeForwardResult r = driver.forward(2, batch.micro(), &y->tensor, false);
  EXPECT_EQ(r.loss_weight, 6);
  EXPECT_EQ(r.carry_out, nullptr);
  EXPECT_EQ(r.saved, nullptr);
}

TEST_F(TorchModelHostTest, FollowsParametersThatMoveBetweenForwardAndBackward) {
  driver.bind_all();
  std::vector<std::vector<double>> elsewhere;
  driver.step(batch.micro(), 1, [&] {
    driver.unbind_all();
    for (size_t i = 0; i < driver.params(); ++i) elsewhere.push_back(driver.memory(i));
    const auto original = elsewhere;
    for (size_t i = 0; i < driver.params(); ++i) {
      driver.bind(i, elsewhere[i].data());
      driver.memory(i).assign(driver.memory(i).size(), std::numeric_limits<double>::quiet_NaN());
    }
  });
  for (size_t i = 0; i < driver.params(); ++i) driver.memory(i) = elsewhere[i];
  expect_oracle_grads(1);
}

// Checks the assumption of the previous test: backward reads the memory that is bound at that time.
TEST_F(TorchModelHostTest, ReadsInBackwardWhatIsBoundThen) {
  driver.bind_all();
  std::vector<double> garbage(kDim * kDim, 1e30);
  driver.step(batch.micro(), 1, [&] { driver.bind(1, garbage.data()); });
  const auto expected = oracle(1);
  const at::Tensor got = at::from_blob(driver.grads[0].data(), expected[0].sizes(), at::kDouble);
  EXPECT_GT((got - expected[0]).abs().max().item<double>(), 1.0);
}

TEST_F(TorchModelHostTest, KeepsACarryThatIsNotCopied) {
  driver.bind_all();
  const ManagedTensor x(driver.forward(0, batch.micro(), nullptr, false).carry_out);
  const YokeForwardResult y = driver.forward(1, batch.micro(), &x->tensor, true);
  const ManagedTensor out(y.carry_out);
  EXPECT_NE(out->tensor.data, x->tensor.data);
  const ManagedTensor grad = driver.backward(driver.backward_args(1, y.saved, &out->tensor, 0));
  EXPECT_EQ(grad->tensor.ndim, 3);
  EXPECT_EQ(grad->tensor.shape[2], kDim);
}

TEST_F(TorchModelHostTest, ForgetsWhatIsDropped) {
  driver.bind_all();
  const YokeForwardResult r = driver.forward(0, batch.micro(), nullptr, true);
  ManagedTensor(r.carry_out).reset();
  ASSERT_NE(r.saved, nullptr);
  host.model().drop_saved(host.model().ctx, r.saved);
  host.model().drop_saved(host.model().ctx, nullptr);
}

TEST_F(TorchModelHostTest, ChainsTheLibTorchExtensionUnlessItIsRemoved) {
  const TorchModel* torch = torch_model(host.model());
  ASSERT_NE(torch, nullptr);
  EXPECT_EQ(torch->blocks->size(), 3u);
  EXPECT_EQ(torch->params->size(), 4u);
  EXPECT_EQ(torch->params->at(1).storage().nbytes(), 0u);
  host.neutral_only();
  EXPECT_EQ(torch_model(host.model()), nullptr);
}

TEST_F(TorchModelHostTest, HandsOutTheSameLeavesAsItBinds) {
  driver.bind_all();
  EXPECT_EQ(torch_model(host.model())->params->at(1).data_ptr(), driver.memory(1).data());
  driver.unbind_all();
  EXPECT_EQ(torch_model(host.model())->params->at(1).storage().nbytes(), 0u);
}

TEST(BlockList, FreesTheMemoryOfABlockAtOnce) {
  BlockList list;
  auto block = std::make_shared<Affine>(at::ones({64, 64}, at::kFloat));
  add_block(list, {"a", block, [](const at::Tensor& x, const TorchInputs&) { return x; }}, "a");
  EXPECT_EQ(block->weight.storage().nbytes(), 0u);
  EXPECT_EQ(block->weight.size(0), 64);
  EXPECT_TRUE(block->weight.requires_grad());
  EXPECT_EQ(list.params[0][0].first, "a.weight");
}

TEST(TorchModelHost, CopiesTheCarryOfABlockThatReturnsItsInput) {
  BlockList list;
  auto block = std::make_shared<Affine>(at::ones({1}));
  const auto pass = [block](const at::Tensor& x, const TorchInputs&) {
    return x.defined() ? x : block->weight * 2;
  };
  for (const char* name : {"a", "b", "c"}) add_block(list, {name, block, pass}, name);
  list.init = [](const std::string&) { return ParamInit{}; };
  list.loss_weight = [](const TorchInputs&) { return 1.0; };
  TorchModelHost host(std::move(list), YOKE_F32, 1, false);
  NeutralDriver<float> driver(host.model());
  driver.bind_all();
  TestBatch batch(1, 1, 2, 1);
  const ManagedTensor first(driver.forward(0, batch.micro(), nullptr, false).carry_out);
  const ManagedTensor second(driver.forward(1, batch.micro(), &first->tensor, false).carry_out);
  EXPECT_NE(first->tensor.data, second->tensor.data);
}

}  // namespace
}  // namespace yoke
