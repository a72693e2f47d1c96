// Evaluates random expressions over tensors with random placements. Values and gradients must be
// those of the plain computation.
#include <gtest/gtest.h>

#include <random>

#include "tests/unit/mesh/dtensor/on_mesh.hpp"

namespace yoke::mesh::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

class Dice {
 public:
  explicit Dice(unsigned seed) : engine_(seed) {}
  int64_t roll(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  const at::Tensor& one_of(const Tensors& list) {
    return list[roll(0, static_cast<int64_t>(list.size()) - 1)];
  }

 private:
  std::mt19937 engine_;
};

constexpr int64_t kB = 2, kS = 8, kD = 12;

// Returns one more tensor of [kB, kS, kD], computed from those in `have`. Equally seeded dice give
// the same operators.
at::Tensor next(Dice& dice, const Tensors& have, const Tensors& weights) {
  const at::Tensor x = dice.one_of(have), y = dice.one_of(have), w = dice.one_of(weights);
  switch (dice.roll(0, 17)) {
    case 0:
      return x + y;
    case 1:
      return x * y;
    case 2:
      return at::silu(x) - y * 0.5;
    case 3:
      return at::linear(x, w);
    case 4:
      return at::matmul(x, w.t());
    case 5:
      return at::rms_norm(x, {kD}, w.select(0, 1));
    case 6:
      return at::cat({x.slice(2, 0, 5), y.slice(2, 5, kD)}, 2);
    case 7:
      return x.view({kB, kS, 4, 3}).transpose(1, 2).contiguous().transpose(1, 2).flatten(2);
    case 8:
      return at::softmax(x, -1) + y.mean(-1, true);
    case 9:
      return x.flatten(0, 1).mm(w).view({kB, kS, kD});
    case 10:
      return at::bmm(x, at::bmm(x.transpose(1, 2), y)) * 0.01;
    case 11:
      return (x.sum(1, true) + y) / 4;
    case 12:
      return at::cat(Tensors{y.chunk(2, -1)[1], x.chunk(2, -1)[0]}, -1).neg();
    case 13:
      return at::where(x.detach() > 0, x, y);
    case 14: {
      const auto heads = [](const at::Tensor& t) { return t.view({kB, kS, 4, 3}).transpose(1, 2); };
      return at::scaled_dot_product_attention(heads(x), heads(y), heads(x), {}, 0.0, true)
          .transpose(1, 2)
          .flatten(2);
    }
    case 15: {
      at::Tensor z = x * 2;
      z.add_(y).mul_(0.5);
      return z;
    }
    case 16:
      return at::layer_norm(x, {kD}, w.select(0, 0), w.select(0, 2));
    default:
      return x.masked_fill(y.detach() > 0.5, 0.25) + at::log_softmax(y, -1);
  }
}

// Returns the loss of a program of a few operators.
at::Tensor program(unsigned seed, const Tensors& inputs, const Tensors& weights) {
  Dice dice(seed);
  Tensors have = inputs;
  for (int i = 0; i < 6; ++i) have.push_back(next(dice, have, weights));
  return at::tanh(have.back()).pow(2).sum() + have[have.size() - 2].mean();
}

Placement random_placement(Dice& dice, int64_t ndim, bool whole_values) {
  const int64_t kind = dice.roll(0, whole_values ? ndim : ndim + 1);
  if (kind == 0) return replicate();
  if (kind <= ndim) return shard(kind - 1);
  return partial();
}

Placements random_placements(Dice& dice, int64_t ndim, bool whole_values) {
  Placements p;
  p[0] = random_placement(dice, ndim, whole_values);
  p[1] = random_placement(dice, ndim, whole_values);
  return p;
}

struct Shape {
  int cp, tp;
};
class Expressions : public ::testing::TestWithParam<Shape> {};

TEST_P(Expressions, ValuesAndGradientsAreThoseOfThePlainComputation) {
  on_mesh({.cp = GetParam().cp, .tp = GetParam().tp}, [&](Mesh& mesh) {
    for (unsigned seed = 0; seed < 150; ++seed) {
      Tensors plain_inputs, plain_weights, inputs, weights;
      Dice dice(seed + 1000);
      for (int i = 0; i < 3; ++i) {
        const at::Tensor x = numbers({kB, kS, kD}, seed * 10 + i),
                         w = numbers({kD, kD}, seed * 10 + i + 5);
        plain_inputs.push_back(x.clone().requires_grad_());
        plain_weights.push_back(w.clone().requires_grad_());
        inputs.push_back(distribute_tensor(x, mesh, random_placements(dice, 3, false))
                             .detach()
                             .requires_grad_());
        weights.push_back(
            distribute_tensor(w, mesh, random_placements(dice, 2, true)).detach().requires_grad_());
      }
      const at::Tensor expected = program(seed, plain_inputs, plain_weights);
      expected.backward();
      const at::Tensor got = program(seed, inputs, weights);
      got.backward();
      ASSERT_NEAR(full_tensor(got).item<double>(), expected.item<double>(), 1e-11)
          << "seed " << seed;
      for (int i = 0; i < 3; ++i) {
        const auto compare = [&](const at::Tensor& a, const at::Tensor& b, const char* what) {
          ASSERT_EQ(a.grad().defined(), b.grad().defined()) << what << " " << i << " seed " << seed;
          if (!b.grad().defined()) return;
          const at::Tensor grad = is_dtensor(a.grad()) ? full_tensor(a.grad()) : a.grad();
          EXPECT_LE(difference(grad, b.grad()), 1e-11) << what << " " << i << " seed " << seed;
        };
        compare(inputs[i], plain_inputs[i], "input");
        compare(weights[i], plain_weights[i], "weight");
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Meshes,
    Expressions,
    ::testing::Values(Shape{1, 1}, Shape{1, 2}, Shape{1, 4}, Shape{2, 2}, Shape{2, 4}));

}  // namespace
}  // namespace yoke::mesh::testing
