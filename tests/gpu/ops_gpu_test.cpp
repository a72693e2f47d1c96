// Compares the operators on a GPU with their compositions in fp64 on the CPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>

#include "core/cuda/rank_device.hpp"
#include "core/kernels/ops.hpp"
#include "core/verify/state_hash.hpp"
#include "tests/support/emulated_cuda.hpp"
#include "tests/support/gpu.hpp"
#include "tests/unit/kernels/ops_fixture.hpp"
#include "tests/unit/run/fake_model.hpp"

namespace yoke::testing {
namespace {

// Sums are longer here than in the unit tests, and the functions of a GPU are less precise.
constexpr double kSlack = 5;

class OpsOnGpu : public OpsTest {
 protected:
  void SetUp() override {
    YOKE_REQUIRE_GPU();
    rank_ = std::make_unique<RankDevice>(0);
    OpsTest::SetUp();
  }
  at::Tensor on_gpu(const at::Tensor& t) const { return t.to(rank_->device()); }

  // Compares an operator on the GPU with a composition. Gradients flow through the copies.
  void expect_same_on_gpu(const std::function<at::Tensor(const Inputs&)>& op,
                          const std::function<at::Tensor(const Inputs&)>& composite,
                          const Inputs& inputs) {
    expect_same(
        [&](const Inputs& given) {
          Inputs copies;
          for (const at::Tensor& t : given) copies.push_back(on_gpu(t));
          return Inputs{op(copies).cpu()};
        },
        [&](const Inputs& t) { return Inputs{composite(t)}; },
        inputs,
        kSlack);
  }

  std::unique_ptr<RankDevice> rank_;
};

TEST_P(OpsOnGpu, RotaryAgrees) {
  for (const int64_t half : {3, 16, 64}) {
    const at::Tensor angle =
        at::randn({2, 50, half}, GetParam() == at::kDouble ? at::kDouble : at::kFloat);
    const at::Tensor cos = on_gpu(angle.cos()), sin = on_gpu(angle.sin());
    expect_same_on_gpu(
        [&](const Inputs& t) {
          const auto [q, k] = ops::rotary(t[0], t[1], cos, sin);
          return at::cat({q, k}, 2);
        },
        [&](const Inputs& t) {
          return ops::composite::rotary(at::cat({t[0], t[1]}, 2), angle.cos(), angle.sin());
        },
        {random({2, 50, 12, 2 * half}), random({2, 50, 3, 2 * half})});
  }
}

TEST_P(OpsOnGpu, NormAgrees) {
  for (const int64_t columns : {33, 64, 4096}) {
    expect_same_on_gpu(
        [](const Inputs& t) {
          const auto [norm, residual] = ops::norm_and_residual(t[0], t[1], 1e-5);
          return at::cat({norm, residual}, 0);
        },
        [](const Inputs& t) {
          return at::cat({ops::composite::rms_norm(t[0], t[1], 1e-5), t[0]}, 0);
        },
        {random({2, 3000, columns}), random({columns})});
  }
}

// The products that are added to something else. 517 outputs: the rows of the result are padded.
TEST_P(OpsOnGpu, ProductsAgree) {
  for (const int64_t inputs : {8, 50, 512}) {
    const auto result = [](const auto& linears, const auto& linear_add) {
      return [=](const Inputs& t) {
        const Inputs y = linears(t[0], {t[1], t[2]});
        return linear_add(y[0], y[1], t[3]);
      };
    };
    expect_same_on_gpu(
        result(
            [](const at::Tensor& x, const Inputs& w) {
              return ops::linears(x, {w[0], w[1]});
            },
            [](const at::Tensor& residual, const at::Tensor& x, const at::Tensor& w) {
              return ops::linear_add(residual, x, w);
            }),
        result([](const at::Tensor& x, const Inputs& w) { return ops::composite::linears(x, w); },
               [](const at::Tensor& residual, const at::Tensor& x, const at::Tensor& w) {
                 return ops::composite::linear_add(residual, x, w);
               }),
        {random({2, 70, inputs}),
         random({64, inputs}, 0.1),
         random({517, inputs}, 0.1),
         random({64, 517}, 0.1)});
  }
}

// Products with weights that are neighbours in memory, and the kernels that read and write parts of
// such a product.
TEST_P(OpsOnGpu, ProductsWithNeighboursAgree) {
  const at::Tensor angle =
      at::randn({2, 70, 16}, GetParam() == at::kDouble ? at::kDouble : at::kFloat);
  const at::Tensor cos = on_gpu(angle.cos()), sin = on_gpu(angle.sin());
  const auto heads = [](const at::Tensor& x) { return x.view({2, 70, -1, 32}); };
  for (const int64_t hidden : {33, 192}) {
    const auto parts = [=](const at::Tensor& all) {
      return Inputs{all.narrow(0, 0, 128),
                    all.narrow(0, 128, 64),
                    all.narrow(0, 192, hidden),
                    all.narrow(0, 192 + hidden, hidden)};
    };
    expect_same_on_gpu(
        [&](const Inputs& t) {
          const Inputs w = parts(t[1]);
          const Inputs y = ops::linears(t[0], {w[0], w[1]}), z = ops::linears(t[0], {w[2], w[3]});
          const auto [q, k] = ops::rotary(heads(y[0]), heads(y[1]), cos, sin);
          return at::cat({q.flatten(2), k.flatten(2), ops::swiglu(z[0], z[1])}, 2);
        },
        [&](const Inputs& t) {
          const Inputs y = ops::composite::linears(t[0], parts(t[1]));
          const auto turned = [&](const at::Tensor& x) {
            return ops::composite::rotary(heads(x), angle.cos(), angle.sin()).flatten(2);
          };
          return at::cat({turned(y[0]), turned(y[1]), ops::composite::swiglu(y[2], y[3])}, 2);
        },
        {random({2, 70, 64}), random({192 + 2 * hidden, 64}, 0.1)});
  }
}

TEST_P(OpsOnGpu, SwigluAgrees) {
  for (const int64_t columns : {33, 4096}) {
    expect_same_on_gpu([](const Inputs& t) { return ops::swiglu(t[0], t[1]); },
                       [](const Inputs& t) { return ops::composite::swiglu(t[0], t[1]); },
                       {random({2, 30, columns}, 3), random({2, 30, columns})});
  }
}

TEST_P(OpsOnGpu, CrossEntropyAgrees) {
  for (const int64_t columns : {7, 256, 50257, 128256}) {
    at::Tensor targets = at::randint(columns, {2, 30}, at::kLong);
    targets[1].slice(0, 5, 9).fill_(ops::kIgnoredTarget);
    const at::Tensor on_device = on_gpu(targets);
    expect_same_on_gpu(
        [&](const Inputs& t) { return ops::cross_entropy_sum(t[0], on_device); },
        [&](const Inputs& t) { return ops::composite::cross_entropy_sum(t[0], targets); },
        {random({2, 30, columns}, 3)});
  }
}

// A sum in fp32 of products of 16-bit numbers, and the gradient of a norm that is added to another.
TEST_P(OpsOnGpu, ProductsAndNormsAddToSums) {
  const at::Tensor a = random({512, 96}), b = random({512, 48}), x = random({300, 64});
  const auto type = GetParam() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor sum = at::ones({96, 48}, at::TensorOptions(rank_->device()).dtype(type));
  cuda_runtime().multiply(sum, on_gpu(a).t(), on_gpu(b), sum);
  expect_close(sum.cpu(), 1 + at::mm(a.to(at::kDouble).t(), b.to(at::kDouble)), "product", kSlack);
  const at::Tensor y = on_gpu(at::empty_like(x)), dx = at::empty_like(y), w = on_gpu(random({64}));
  const at::Tensor scales = at::empty({300}, y.options().dtype(type));
  const at::Tensor dw = at::ones({64}, scales.options());
  cuda_runtime().rms_norm(y, scales, on_gpu(x), w, 1e-5);
  cuda_runtime().rms_norm_backward({dx, dw, true}, on_gpu(x), {}, on_gpu(x), w, scales);
  const at::Tensor wide = x.to(at::kDouble);
  expect_close(dw.cpu(),
               1 + (wide.square() * (wide.square().mean(1, true) + 1e-5).rsqrt()).sum(0),
               "weight of the norm",
               kSlack);
}

// The kernel on a device against the emulated one, on lengths with and without a rest.
TEST(AdamWOnGpu, IsTheEmulatedKernel) {
  YOKE_REQUIRE_GPU();
  const RankDevice rank(0);
  for (const int64_t count : {5, 4096, 4099}) {
    const auto narrow = at::kBFloat16;
    AdamWTensors t{
        .params = at::randn({count}),
        .exp_avg = at::randn({count}),
        .exp_avg_sq = at::rand({count}),
        .grads = at::randn({count}),
        .copy = at::zeros({count}, narrow),
        .coefficients = at::tensor({0.9, 0.0, 0.9, 0.95, 0.1, 0.05, 1e-8, 1e-2, 1.1}, at::kFloat),
        .divisor = at::full({}, 2, at::kDouble),
        .skip = at::zeros({})};
    AdamWTensors on_device = t;
    for (at::Tensor* tensor : {&on_device.params,
                               &on_device.exp_avg,
                               &on_device.exp_avg_sq,
                               &on_device.grads,
                               &on_device.copy,
                               &on_device.coefficients,
                               &on_device.divisor,
                               &on_device.skip})
      *tensor = tensor->to(rank.device());
    rank.runtime().adamw(on_device);
    {
      const EmulatedCuda cuda;
      cuda_runtime().adamw(t);
    }
    EXPECT_TRUE(at::allclose(on_device.params.cpu(), t.params, 1e-5, 1e-6));
    EXPECT_TRUE(at::allclose(on_device.exp_avg.cpu(), t.exp_avg, 1e-5, 1e-6));
    EXPECT_TRUE(at::allclose(on_device.exp_avg_sq.cpu(), t.exp_avg_sq, 1e-5, 1e-6));
    EXPECT_TRUE(at::equal(on_device.copy, on_device.params.to(narrow)));
  }
}

// One row is used 2,000 times. A sum in bf16 would lose most of its gradient.
TEST_P(OpsOnGpu, EmbeddingAgrees) {
  const at::Tensor ids = at::cat({at::arange(7), at::full({2000}, 3, at::kLong)});
  const at::Tensor on_device = on_gpu(ids);
  expect_same_on_gpu([&](const Inputs& t) { return ops::embedding(t[0], on_device); },
                     [&](const Inputs& t) { return ops::composite::embedding(t[0], ids); },
                     {random({7, 64})});
}

// verify.every compares replicas by these hashes. The piece has several slices. Its second form
// begins at an address that is not aligned, and its third consists of runs.
TEST_P(OpsOnGpu, HashesOfStateAreThoseOfTheCpu) {
  const at::Tensor values = random({40000}).detach(), on_device = on_gpu(values);
  for (const auto& [begin, run] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 0}, {1, 0}, {0, 48}}) {
    StatePiece piece{"w", "param", values.slice(0, begin), /*begin=*/5};
    if (run > 0) {
      piece.run = run;
      piece.stride = run + 37;
    }
    const uint64_t expected =
        with_piece(piece, true, [](const YokePiece& shown) { return state_hash(shown); });
    const at::Tensor sum = at::ones({}, on_device.options().dtype(at::kLong));
    piece.values = on_device.slice(0, begin);
    with_piece(
        piece, true, [&](const YokePiece& shown) { rank_->runtime().add_state_hash(sum, shown); });
    EXPECT_EQ(static_cast<uint64_t>(sum.item<int64_t>()), expected + 1) << begin << " " << run;
  }
}

INSTANTIATE_TEST_SUITE_P(Types,
                         OpsOnGpu,
                         ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

}  // namespace
}  // namespace yoke::testing
