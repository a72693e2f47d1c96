#include "core/kernels/ops.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include "core/kernels/fused_ops.hpp"
#include "tests/unit/kernels/ops_fixture.hpp"
#include "yoke/error.hpp"

namespace yoke {
namespace {

using ::testing::HasSubstr;
using testing::Inputs;
using testing::OpsTest;
// The gradient of x is added up in a tensor of its type: three roundings.
TEST_P(OpsTest, LinearsAgree) {
  expect_same(
      [](const Inputs& t) {
        return ops::linears(t[0], {t[1], t[2], t[3]});
      },
      [](const Inputs& t) {
        return ops::composite::linears(t[0], {t[1], t[2], t[3]});
      },
      {random({2, 3, 8}), random({8, 8}), random({4, 8}), random({5, 8})},
      /*slack=*/1,
      /*of_gradients=*/roundings(3));
}

// Tests the code path for a processor without AVX-512. The second product reads rounded ones.
TEST_P(OpsTest, ProductsAgreeWithoutOneDnn) {
  at::globalContext().setUserEnabledMkldnn(false);
  expect_same(
      [](const Inputs& t) {
        Inputs out = ops::linears(t[0], {t[1], t[2]});
        out.push_back(ops::linear_add(t[3], out[1], t[4]));
        return out;
      },
      [](const Inputs& t) {
        Inputs out = ops::composite::linears(t[0], {t[1], t[2]});
        out.push_back(ops::composite::linear_add(t[3], out[1], t[4]));
        return out;
      },
      {random({2, 3, 8}), random({8, 8}), random({4, 8}), random({2, 3, 6}), random({6, 4})},
      roundings(2),
      /*of_gradients=*/roundings(3));
  at::globalContext().setUserEnabledMkldnn(true);
}

TEST_P(OpsTest, LinearAddAgrees) {
  expect_same([](const Inputs& t) { return Inputs{ops::linear_add(t[0], t[1], t[2])}; },
              [](const Inputs& t) { return Inputs{ops::composite::linear_add(t[0], t[1], t[2])}; },
              {random({2, 3, 6}), random({2, 3, 8}), random({6, 8})});
}

// If the residual is also the input, its gradient is the sum of two rounded ones.
TEST_P(OpsTest, LinearAddAgreesWhenTheResidualIsTheInput) {
  expect_same([](const Inputs& t) { return Inputs{ops::linear_add(t[0], t[0], t[1])}; },
              [](const Inputs& t) { return Inputs{ops::composite::linear_add(t[0], t[0], t[1])}; },
              {random({2, 3, 8}), random({8, 8})},
              /*slack=*/1,
              /*of_gradients=*/roundings(2));
}

// One row is used 500 times. A sum in bf16 would lose most of its gradient.
TEST_P(OpsTest, EmbeddingAgrees) {
  const at::Tensor ids = at::cat({at::arange(7), at::full({499}, 3, at::kLong)}).view({2, 253});
  const at::Tensor weight = random({7, 6});
  expect_same([&](const Inputs& t) { return Inputs{ops::embedding(t[0], ids)}; },
              [&](const Inputs& t) { return Inputs{ops::composite::embedding(t[0], ids)}; },
              {weight});
  const at::Tensor leaf = weight.clone().set_requires_grad(true);
  torch::autograd::backward({ops::embedding(leaf, ids)}, {at::ones({2, 253, 6}, GetParam())});
  EXPECT_EQ(leaf.grad()[3][0].item<double>(), 500);
}

TEST_P(OpsTest, RmsNormAgrees) {
  expect_same([](const Inputs& t) { return Inputs{ops::rms_norm(t[0], t[1], 1e-5)}; },
              [](const Inputs& t) { return Inputs{ops::composite::rms_norm(t[0], t[1], 1e-5)}; },
              {random({2, 3, 50}), random({50})});
}

TEST_P(OpsTest, RotaryAgrees) {
  const at::Tensor angle =
      at::randn({2, 5, 3}, GetParam() == at::kDouble ? at::kDouble : at::kFloat);
  const at::Tensor cos = angle.cos(), sin = angle.sin();
  expect_same(
      [&](const Inputs& t) {
        const auto [q, k] = ops::rotary(t[0], t[1], cos, sin);
        return Inputs{q, k};
      },
      [&](const Inputs& t) {
        return Inputs{ops::composite::rotary(t[0], cos, sin),
                      ops::composite::rotary(t[1], cos, sin)};
      },
      {random({2, 5, 4, 6}), random({2, 5, 2, 6})});
}

// Both results are used, as in a transformer block: the gradient of x is a sum.
TEST_P(OpsTest, NormAndResidualAgree) {
  for (const int64_t rows : {3, 700}) {
    expect_same(
        [](const Inputs& t) {
          const auto [norm, residual] = ops::norm_and_residual(t[0], t[1], 1e-5);
          return Inputs{norm, residual};
        },
        [](const Inputs& t) {
          return Inputs{ops::composite::rms_norm(t[0], t[1], 1e-5), t[0]};
        },
        {random({2, rows, 50}), random({50})});
  }
  const at::Tensor x = random({3, 16}).set_requires_grad(true), weight = random({16});
  ops::norm_and_residual(x, weight, 1e-5).residual.sum().backward();
  EXPECT_TRUE(x.grad().eq(1).all().item<bool>());
}

TEST_P(OpsTest, SwigluAgrees) {
  expect_same([](const Inputs& t) { return Inputs{ops::swiglu(t[0], t[1])}; },
              [](const Inputs& t) { return Inputs{ops::composite::swiglu(t[0], t[1])}; },
              {random({2, 3, 33}, 3), random({2, 3, 33})});
}

// The backward reads rounded outputs.
TEST_P(OpsTest, CausalAttentionAgrees) {
  expect_same(
      [](const Inputs& t) { return Inputs{ops::causal_attention(t[0], t[1], t[2])}; },
      [](const Inputs& t) { return Inputs{ops::composite::causal_attention(t[0], t[1], t[2])}; },
      {random({2, 19, 6, 10}), random({2, 19, 2, 10}), random({2, 19, 2, 10})},
      /*slack=*/1,
      /*of_gradients=*/roundings(3));
}

TEST_P(OpsTest, CausalAttentionInAWindowAgrees) {
  for (const int64_t window : {2, 7, 18, 19, 40}) {
    expect_same(
        [&](const Inputs& t) { return Inputs{ops::causal_attention(t[0], t[1], t[2], window)}; },
        [&](const Inputs& t) {
          return Inputs{ops::composite::causal_attention(t[0], t[1], t[2], window)};
        },
        {random({2, 19, 6, 10}), random({2, 19, 2, 10}), random({2, 19, 2, 10})},
        /*slack=*/1,
        /*of_gradients=*/roundings(3));
  }
}

// Returns the documents of sequences [2, length]: a short, a tiny and a long one, and a single one.
ops::Documents documents_in(int64_t length) {
  const at::Tensor index = at::arange(length).repeat({2, 1});
  at::Tensor starts = at::zeros({2, length}, at::kLong);
  starts[0].slice(0, length / 3).fill_(length / 3);
  starts[0].slice(0, length / 3 + 1).fill_(length / 3 + 1);
  return {starts, index - starts};
}

// Longer sequences than the fused kernel takes are attended to one document at a time, by LibTorch,
// whose rounding errors depend on the processor.
TEST_P(OpsTest, CausalAttentionInDocumentsAgrees) {
  for (const int64_t length : {int64_t{19}, ops::fused::kLongestAttention * 2}) {
    const ops::Documents documents = documents_in(length);
    for (const int64_t window : {int64_t{0}, int64_t{3}, length}) {
      SCOPED_TRACE(::testing::Message() << length << " tokens, window " << window);
      expect_same(
          [&](const Inputs& t) {
            return Inputs{ops::causal_attention(t[0], t[1], t[2], window, documents)};
          },
          [&](const Inputs& t) {
            return Inputs{ops::composite::causal_attention(t[0], t[1], t[2], window, documents)};
          },
          {random({2, length, 4, 4}), random({2, length, 2, 4}), random({2, length, 2, 4})},
          length > ops::fused::kLongestAttention ? 5 : 1,
          /*of_gradients=*/length > ops::fused::kLongestAttention ? 5 : roundings(3));
    }
  }
}

// The composition is compared with attention in each document alone.
TEST(Ops, AttendWithinDocuments) {
  const int64_t length = 19;
  const ops::Documents documents = documents_in(length);
  const auto make = [&](int64_t heads) {
    return at::randn({2, length, heads, 8}, at::kDouble).set_requires_grad(true);
  };
  for (const int64_t window : {0, 3}) {
    const at::Tensor q = make(4), k = make(2), v = make(2),
                     grad = at::randn({2, length, 32}, at::kDouble);
    const at::Tensor packed = ops::composite::causal_attention(q, k, v, window, documents);
    const auto grads = torch::autograd::grad({packed}, {q, k, v}, {grad}, true);
    std::vector<at::Tensor> rows;
    for (const int64_t row : {0, 1}) {
      std::vector<at::Tensor> alone;
      int64_t begin = 0;
      for (const int64_t end : {6, 7, 19}) {
        if (row == 1 && end < length) continue;
        const auto part = [&](const at::Tensor& t) {
          return t.slice(0, row, row + 1).slice(1, begin, end);
        };
        alone.push_back(ops::composite::causal_attention(part(q), part(k), part(v), window));
        begin = end;
      }
      rows.push_back(at::cat(alone, 1));
    }
    const at::Tensor separate = at::cat(rows, 0);
    const auto expected = torch::autograd::grad({separate}, {q, k, v}, {grad});
    EXPECT_LE((packed - separate).abs().max().item<double>(), 1e-14);
    for (size_t i = 0; i < 3; ++i)
      EXPECT_LE((grads[i] - expected[i]).abs().max().item<double>(), 1e-14) << i;
  }
}

// The composition adds biases after the products, the fused operators add them inside. The residual
// is rounded with its bias first, and the gradient of the input is a sum of four.
TEST_P(OpsTest, BiasesAgree) {
  expect_same(
      [](const Inputs& t) {
        auto out = ops::linears(t[0], {{t[1], {}, t[3]}, {t[2]}, {t[2], {}, t[4]}});
        out.push_back(ops::linear_add(t[0], t[0], {t[5], {}, t[6]}));
        return out;
      },
      [](const Inputs& t) {
        auto out = ops::composite::linears(t[0], {t[1], t[2], t[2]});
        out[0] = out[0] + t[3];
        out[2] = out[2] + t[4];
        out.push_back(ops::composite::linear_add(t[0], t[0], t[5]) + t[6]);
        return out;
      },
      {random({2, 7, 12}),
       random({20, 12}),
       random({8, 12}),
       random({20}),
       random({8}),
       random({12, 12}),
       random({12})},
      roundings(2),
      /*of_gradients=*/roundings(4));
}

TEST_P(OpsTest, CrossEntropyAgrees) {
  const at::Tensor targets = at::tensor({3, 0, -100, 49, 7, -100}, at::kLong).view({2, 3});
  expect_same(
      [&](const Inputs& t) { return Inputs{ops::cross_entropy_sum(t[0], targets)}; },
      [&](const Inputs& t) { return Inputs{ops::composite::cross_entropy_sum(t[0], targets)}; },
      {random({2, 3, 50}, 3)});
}

// The gradient overwrites the logits, so they cannot be used again.
TEST(Ops, CrossEntropyReusesTheMemoryOfTheLogits) {
  const at::Tensor x = at::randn({2, 5}).set_requires_grad(true), logits = x * 1;
  at::Tensor gradient;
  logits.register_hook([&](const at::Tensor& g) { gradient = g; });
  const at::Tensor loss = ops::cross_entropy_sum(logits, at::tensor({1, 4}, at::kLong));
  torch::autograd::backward({loss}, {}, /*retain_graph=*/true);
  EXPECT_EQ(gradient.data_ptr(), logits.data_ptr());
  EXPECT_THROW(torch::autograd::backward({loss}), c10::Error);
}

TEST_P(OpsTest, TakesInputsOfAnyLayout) {
  const at::Tensor targets = at::tensor({3, 0, -100, 4, 1, 2}, at::kLong).view({3, 2});
  expect_same(
      [&](const Inputs& t) {
        return Inputs{ops::cross_entropy_sum(t[0].transpose(0, 1), targets)};
      },
      [&](const Inputs& t) {
        return Inputs{ops::composite::cross_entropy_sum(t[0].transpose(0, 1), targets)};
      },
      {random({2, 3, 5})});
  expect_same(
      [](const Inputs& t) { return ops::linears(t[0].transpose(0, 1), {t[1].t()}); },
      [](const Inputs& t) { return ops::composite::linears(t[0].transpose(0, 1), {t[1].t()}); },
      {random({2, 3, 8}), random({8, 5})});
  expect_same(
      [](const Inputs& t) { return Inputs{ops::rms_norm(t[0].transpose(0, 1), t[1], 1e-5)}; },
      [](const Inputs& t) {
        return Inputs{ops::composite::rms_norm(t[0].transpose(0, 1), t[1], 1e-5)};
      },
      {random({2, 3, 8}), random({8})});
  expect_same(
      [](const Inputs& t) { return Inputs{ops::swiglu(t[0].transpose(0, 1), t[1])}; },
      [](const Inputs& t) { return Inputs{ops::composite::swiglu(t[0].transpose(0, 1), t[1])}; },
      {random({4, 3}), random({3, 4})});
}

INSTANTIATE_TEST_SUITE_P(Types,
                         OpsTest,
                         ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST(Ops, RefuseTargetsOutsideTheVocabulary) {
  const at::Tensor logits = at::zeros({2, 5});
  try {
    ops::cross_entropy_sum(logits, at::tensor({1, 5}, at::kLong));
    FAIL() << "nothing was thrown";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), YOKE_INVALID_ARGUMENT);
    EXPECT_THAT(e.what(), HasSubstr("target 5 at element 1; allowed: 0 to 4"));
  }
}

TEST(Ops, FuseOnlyPlainTensorsInCpuMemory) {
  const at::Tensor plain = at::zeros({2, 4});
  EXPECT_TRUE(ops::fused::takes({&plain}));
  const at::Tensor meta = at::zeros({2, 4}, at::kMeta), integer = at::zeros({2, 4}, at::kLong),
                   other = at::zeros({2, 4}, at::kDouble);
  EXPECT_FALSE(ops::fused::takes({&meta}));
  EXPECT_FALSE(ops::fused::takes({&integer}));
  EXPECT_FALSE(ops::fused::takes({&plain, &other}));
  auto wrapper = c10::make_intrusive<c10::TensorImpl>(
      c10::DispatchKeySet(c10::DispatchKey::CPU), plain.dtype(), plain.device());
  wrapper->set_sizes_contiguous({2, 4});
  const at::Tensor without_storage(std::move(wrapper));
  EXPECT_FALSE(ops::fused::takes({&plain, &without_storage}));
}

// Returns outputs and gradients of all operators, on inputs that are large enough to be split
// between threads.
std::vector<at::Tensor> everything(int threads) {
  at::set_num_threads(threads);
  at::manual_seed(3);
  const at::Tensor x = at::randn({4, 300, 4, 32}).set_requires_grad(true);
  const at::Tensor w = at::randn({128}).set_requires_grad(true);
  const at::Tensor angle = at::randn({4, 300, 16}), targets = at::randint(128, {4, 300}, at::kLong);
  const auto [y, turned] = ops::rotary(x, x, angle.cos(), angle.sin());
  const at::Tensor z = ops::rms_norm(ops::causal_attention(y, x, turned), w, 1e-5);
  const at::Tensor loss = ops::cross_entropy_sum(ops::swiglu(z, x.flatten(2)), targets);
  loss.backward();
  return {y.detach(), z.detach(), loss.detach(), x.grad(), w.grad()};
}

TEST(Ops, GiveTheSameBitsOnAnyNumberOfThreads) {
  const auto one = everything(1), four = everything(4);
  at::set_num_threads(1);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(one[i].equal(four[i])) << i;
}

// The composition must not choose the implementation that stores all S x S scores.
TEST(Ops, LeaveLongSequencesToFlashAttention) {
  const at::Tensor q = at::zeros({1, 4, 32, 8}), k = at::zeros({1, 2, 32, 8});
  EXPECT_EQ(at::_fused_sdp_choice(q, k, k, {}, 0.0, true, std::nullopt, true),
            static_cast<int64_t>(sdp::SDPBackend::flash_attention));
  const int64_t longer = ops::fused::kLongestAttention + 1;
  const at::Tensor x = at::randn({1, longer, 2, 8});
  const at::Tensor both =
      ops::causal_attention(x, x, x) - ops::composite::causal_attention(x, x, x);
  EXPECT_EQ(both.abs().max().item<double>(), 0);
}

}  // namespace
}  // namespace yoke
