// Tests the errors that a model reports when a backend, or the author of its blocks, is wrong.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/model/torch_model.hpp"
#include "tests/unit/model/neutral_driver.hpp"
#include "tests/unit/model/odd_model.hpp"

namespace yoke {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class TorchModelErrorsTest : public TorchModelHostTest {};

TEST(TorchModelErrors, RefusesAHintThatDoesNotFitItsParameter) {
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

TEST_F(TorchModelErrorsTest, RefusesViewsThatDoNotFit) {
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

TEST_F(TorchModelErrorsTest, NamesAParameterWithoutMemory) {
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

TEST_F(TorchModelErrorsTest, RefusesWrongArguments) {
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

TEST_F(TorchModelErrorsTest, EndsTheBackwardWithTheErrorOfOnGradReady) {
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
  // The failed backward must not affect the next step.
  driver.step(batch.micro(), 1);
  expect_oracle_grads(1);
}

TEST_F(TorchModelErrorsTest, ReportsErrorsOfABlockAsInternal) {
  driver.bind_all();
  batch.tokens[0] = 77;
  const Error e = error_of([&] { driver.forward(0, batch.micro(), nullptr, true); });
  EXPECT_EQ(e.code(), YOKE_INTERNAL);
  EXPECT_THAT(e.what(), Not(HasSubstr("Exception raised from")));
}

TEST(BlockListErrors, RefusesABlockWithoutForward) {
  BlockList list;
  EXPECT_THROW(add_block(list, {"a", std::make_shared<Affine>(at::ones({1})), nullptr}, "a"),
               Error);
}

TEST(BlockListErrors, RefusesABlockWithBuffers) {
  struct Counting : torch::nn::Module {
    Counting() { register_buffer("seen", at::zeros({1})); }
  };
  BlockList list;
  const auto forward = [](const at::Tensor& x, const TorchInputs&) { return x; };
  EXPECT_THROW(add_block(list, {"count", std::make_shared<Counting>(), forward}, "count"), Error);
}

TEST(TorchModelErrors, RefusesTwoParametersOfOneName) {
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
