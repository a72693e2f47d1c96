#include "core/model/torch_model.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/nn/module.h>

#include <limits>

#include "tests/unit/model/neutral_driver.hpp"

namespace yoke {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Affine : torch::nn::Module {
  explicit Affine(at::Tensor w, bool with_extras = false) {
    weight = register_parameter("weight", w);
    if (!with_extras) return;
    unused = register_parameter("unused", at::zeros({3}, at::kDouble));
    frozen = register_parameter("frozen", at::zeros({2}, at::kDouble), /*requires_grad=*/false);
  }
  at::Tensor weight, unused, frozen;
};

const int64_t kDim = 4, kVocab = 6;

// A model of an embedding (6 x 4), a tanh layer (4 x 4) with an unused and a frozen parameter, and
// a head that is tied to the embedding. It is small enough to differentiate by hand, and odd enough
// to exercise every rule of the contract.
BlockList odd_blocks() {
  BlockList list;
  auto embedding = std::make_shared<Affine>(at::zeros({kVocab, kDim}, at::kDouble));
  auto layer = std::make_shared<Affine>(at::zeros({kDim, kDim}, at::kDouble), true);
  auto head = std::make_shared<Affine>(embedding->weight);
  add_block(list,
            {"embedding",
             embedding,
             [embedding](const at::Tensor&, const TorchInputs& in) {
               return at::embedding(embedding->weight, input(in, "tokens"));
             }},
            "embedding");
  add_block(list,
            {"layer",
             layer,
             [layer](const at::Tensor& x, const TorchInputs&) {
               return at::tanh(at::linear(x, layer->weight)) * x;
             }},
            "layer");
  add_block(list,
            {"head",
             head,
             [head](const at::Tensor& x, const TorchInputs& in) {
               const at::Tensor rows = at::linear(x, head->weight).flatten(0, 1);
               return at::cross_entropy_loss(
                   rows, input(in, "targets").flatten(), {}, at::Reduction::Sum);
             }},
            "head");
  list.init = [](const std::string& name) {
    if (name == "layer.frozen") return ParamInit{ParamInit::kConstant, 0.25};
    return ParamInit{ParamInit::kUniform, 0.5};
  };
  list.loss_weight = [](const TorchInputs& in) {
    return static_cast<double>(input(in, "targets").numel());
  };
  return list;
}

class TorchModelHostTest : public ::testing::Test {
 protected:
  TorchModelHostTest()
      : host(odd_blocks(), YOKE_F64, 7, true), driver(host.model()), batch(2, 3, kVocab, 5) {}

  template <class F>
  static Error error_of(F&& f) {
    try {
      f();
    } catch (const Error& e) {
      return e;
    }
    return Error(YOKE_OK, "nothing was thrown");
  }

  // Computes the gradients of the same model by plain autograd.
  std::vector<at::Tensor> oracle(double loss_grad, double* loss = nullptr) {
    const auto copy = [&](size_t i, at::IntArrayRef shape) {
      return at::from_blob(driver.memory(i).data(), shape, at::kDouble)
          .clone()
          .set_requires_grad(true);
    };
    const auto ids = [&](std::vector<int64_t>& v) {
      return at::from_blob(v.data(), {2, 3}, at::kLong);
    };
    at::Tensor e = copy(0, {kVocab, kDim}), w = copy(1, {kDim, kDim});
    const at::Tensor x = e.index({ids(batch.tokens)});
    const at::Tensor logits = at::matmul(at::tanh(at::matmul(x, w.t())) * x, e.t());
    const at::Tensor sum =
        -at::log_softmax(logits, -1).gather(-1, ids(batch.targets).unsqueeze(-1)).sum();
    if (loss != nullptr) *loss = sum.item<double>();
    (sum * loss_grad).backward();
    return {e.grad(), w.grad()};
  }

  void expect_oracle_grads(double loss_grad) {
    const auto expected = oracle(loss_grad);
    for (size_t i : {0, 1}) {
      const at::Tensor got =
          at::from_blob(driver.grads[i].data(), expected[i].sizes(), at::kDouble);
      EXPECT_LT((got - expected[i]).abs().max().item<double>(), 1e-15) << driver.name(i);
    }
  }

  TorchModelHost host;
  NeutralDriver<double> driver;
  TestBatch batch;
};

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

TEST(TorchModelHost, RefusesAHintThatDoesNotFitItsParameter) {
  for (const TpHint hint :
       {TpHint::along(2, 2), TpHint::along(0, 5), TpHint::along(0, 0), TpHint{-2, 0}}) {
    BlockList list = odd_blocks();
    list.tp = [hint](const std::string& name) {
      return name == "layer.weight" ? hint : TpHint::whole();
    };
    try {
      const TorchModelHost host(std::move(list), YOKE_F64, 7, true);
      ADD_FAILURE() << "cut " << hint.cut << " parts " << hint.parts;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), YOKE_INVALID_ARGUMENT);
      EXPECT_THAT(e.what(), HasSubstr("'layer.weight' fp64 [4, 4]"));
    }
  }
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

TEST_F(TorchModelHostTest, RefusesViewsThatDoNotFit) {
  const YokeModel& m = host.model();
  const auto refusal = [&](YokeTensor t, int64_t param = 1) {
    YokeError err = make_error();
    EXPECT_EQ(m.bind_param(m.ctx, param, &t, &err), YOKE_INVALID_ARGUMENT);
    return std::string(err.text);
  };
  std::vector<double> memory(16);
  const YokeTensor good = driver.view_of(1, memory.data());
  YokeTensor t = good;
  t.dtype = data_type(YOKE_F32);
  EXPECT_THAT(refusal(t),
              HasSubstr("'layer.weight' is fp32 [4, 4]; it needs a compact fp64 [4, 4]"));
  int64_t shape[] = {2, 8}, transposed[] = {1, 4}, compact[] = {4, 1};
  t = good;
  t.shape = shape;
  EXPECT_THAT(refusal(t), HasSubstr("is fp64 [2, 8]"));
  t = good;
  t.strides = transposed;
  EXPECT_THAT(refusal(t), HasSubstr("not compact"));
  t = good;
  t.data = nullptr;
  EXPECT_THAT(refusal(t), HasSubstr("has no data"));
  t = good;
  t.byte_offset = 3;
  EXPECT_THAT(refusal(t), HasSubstr("not aligned"));
  t = good;
  t.device = {YOKE_DEVICE_CUDA, 0};
  EXPECT_THAT(refusal(t), HasSubstr("device"));
  EXPECT_THAT(refusal(good, 17), HasSubstr("parameter 17; allowed: 0 to 3"));
  t = good;
  t.strides = compact;
  YokeError err = make_error();
  EXPECT_EQ(m.bind_param(m.ctx, 1, &t, &err), YOKE_OK);
}

TEST_F(TorchModelHostTest, NamesAParameterWithoutMemory) {
  driver.bind_all();
  const ManagedTensor x(driver.forward(0, batch.micro(), nullptr, false).carry_out);
  driver.bind(1, nullptr);
  const Error forward = error_of([&] { driver.forward(1, batch.micro(), &x->tensor, true); });
  EXPECT_EQ(forward.code(), YOKE_FAILED_PRECONDITION);
  EXPECT_THAT(forward.what(), HasSubstr("'layer.weight'"));

  driver.bind_all();
  const YokeForwardResult y = driver.forward(1, batch.micro(), &x->tensor, true);
  const ManagedTensor out(y.carry_out);
  driver.unbind_all();
  const Error backward =
      error_of([&] { driver.backward(driver.backward_args(1, y.saved, &out->tensor, 0)); });
  EXPECT_EQ(backward.code(), YOKE_FAILED_PRECONDITION);
}

TEST_F(TorchModelHostTest, RefusesWrongArguments) {
  driver.bind_all();
  const ManagedTensor x(driver.forward(0, batch.micro(), nullptr, false).carry_out);
  EXPECT_THAT(error_of([&] { driver.forward(3, batch.micro(), &x->tensor, true); }).what(),
              HasSubstr("allowed: 0 to 2"));
  EXPECT_THAT(error_of([&] { driver.forward(0, batch.micro(), &x->tensor, true); }).what(),
              HasSubstr("carry_in"));
  EXPECT_THAT(error_of([&] { driver.forward(1, batch.micro(), nullptr, true); }).what(),
              HasSubstr("carry_in"));
  EXPECT_THAT(error_of([&] { driver.forward(1, nullptr, &x->tensor, true); }).what(),
              HasSubstr("micro is NULL"));
  EXPECT_THAT(
      error_of([&] { driver.backward(driver.backward_args(1, nullptr, &x->tensor, 0)); }).what(),
      HasSubstr("saved"));
  const auto saved = [&] {
    const YokeForwardResult r = driver.forward(1, batch.micro(), &x->tensor, true);
    ManagedTensor(r.carry_out).reset();
    return r.saved;
  };
  EXPECT_THAT(
      error_of([&] { driver.backward(driver.backward_args(1, saved(), nullptr, 0)); }).what(),
      HasSubstr("grad_out"));
  EXPECT_THAT(
      error_of([&] { driver.backward(driver.backward_args(0, saved(), &x->tensor, 0)); }).what(),
      HasSubstr("saved"));
  int64_t shape[] = {2, 3, 1};
  YokeTensor wrong = x->tensor;
  wrong.shape = shape;
  wrong.strides = nullptr;
  EXPECT_THAT(
      error_of([&] { driver.backward(driver.backward_args(1, saved(), &wrong, 0)); }).what(),
      HasSubstr("is fp64 [2, 3, 1], its carry_out was fp64 [2, 3, 4]"));
}

TEST_F(TorchModelHostTest, EndsTheBackwardWithTheErrorOfOnGradReady) {
  driver.bind_all();
  const ManagedTensor x(driver.forward(0, batch.micro(), nullptr, false).carry_out);
  const YokeForwardResult y = driver.forward(1, batch.micro(), &x->tensor, true);
  const ManagedTensor out(y.carry_out);
  YokeBackwardArgs args = driver.backward_args(1, y.saved, &out->tensor, 0);
  args.on_grad_ready = [](void*, int64_t, const YokeTensor*, YokeError* err) {
    return fill(err, YOKE_UNAVAILABLE, "rank 1 is lost", 1, 12);
  };
  const Error e = error_of([&] { driver.backward(args); });
  EXPECT_EQ(e.code(), YOKE_UNAVAILABLE);
  EXPECT_STREQ(e.what(), "rank 1 is lost");
  EXPECT_EQ(e.rank(), 1);
  EXPECT_EQ(e.step(), 12);
  // The failed backward leaves nothing behind for the next one.
  driver.step(batch.micro(), 1);
  expect_oracle_grads(1);
}

TEST_F(TorchModelHostTest, ReportsErrorsOfABlockAsInternal) {
  driver.bind_all();
  batch.tokens[0] = 77;
  const Error e = error_of([&] { driver.forward(0, batch.micro(), nullptr, true); });
  EXPECT_EQ(e.code(), YOKE_INTERNAL);
  EXPECT_THAT(e.what(), Not(HasSubstr("Exception raised from")));
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

TEST(BlockList, RefusesABlockWithoutForward) {
  BlockList list;
  EXPECT_THROW(add_block(list, {"a", std::make_shared<Affine>(at::ones({1})), nullptr}, "a"),
               Error);
}

TEST(BlockList, RefusesABlockWithBuffers) {
  struct Counting : torch::nn::Module {
    Counting() { register_buffer("seen", at::zeros({1})); }
  };
  BlockList list;
  const auto forward = [](const at::Tensor& x, const TorchInputs&) { return x; };
  EXPECT_THROW(add_block(list, {"count", std::make_shared<Counting>(), forward}, "count"), Error);
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

TEST(TorchModelHost, RefusesTwoParametersOfOneName) {
  BlockList list;
  const auto forward = [](const at::Tensor& x, const TorchInputs&) { return x; };
  for (int i = 0; i < 2; ++i)
    add_block(list, {"a", std::make_shared<Affine>(at::ones({1})), forward}, "a");
  list.init = [](const std::string&) { return ParamInit{}; };
  list.loss_weight = [](const TorchInputs&) { return 1.0; };
  EXPECT_THROW(TorchModelHost(std::move(list), YOKE_F32, 1, false), Error);
}

}  // namespace
}  // namespace yoke
