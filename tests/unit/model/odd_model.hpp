// Provides a small model with the oddities that the contract allows, and a fixture that drives it.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/model/torch_model.hpp"
#include "tests/unit/model/neutral_driver.hpp"

namespace yoke {

struct Affine : torch::nn::Module {
  explicit Affine(at::Tensor w, bool with_extras = false) {
    weight = register_parameter("weight", w);
    if (!with_extras) return;
    unused = register_parameter("unused", at::zeros({3}, at::kDouble));
    frozen = register_parameter("frozen", at::zeros({2}, at::kDouble), /*requires_grad=*/false);
  }
  at::Tensor weight, unused, frozen;
};

constexpr int64_t kDim = 4, kVocab = 6;

// A model of an embedding (6 x 4), a tanh layer (4 x 4) with an unused and a frozen parameter, and
// a head that is tied to the embedding. It is small enough to differentiate by hand, and odd enough
// to exercise every rule of the contract.
inline BlockList odd_blocks() {
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

}  // namespace yoke
