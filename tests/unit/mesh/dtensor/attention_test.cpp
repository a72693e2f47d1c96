// Compares attention of distributed tensors with that of plain tensors, and the attention of a tile
// that is composed of products with the fused kernel.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sdk/mesh/dtensor/tile_attention.hpp"
#include "tests/unit/mesh/dtensor/on_mesh.hpp"
#include "yoke/error.hpp"

namespace yoke::mesh::testing {
namespace {

using ::testing::HasSubstr;

// Queries, keys and values, and how they attend.
struct Attention {
  const char* name;
  int64_t heads = 4, key_heads = 4, value_size = 8;
  at::Tensor mask;
  bool causal = false;

  at::Tensor operator()(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) const {
    const auto given = mask.defined() ? std::optional(mask) : std::nullopt;
    return at::scaled_dot_product_attention(
        q, k, v, given, 0.0, causal, std::nullopt, heads != key_heads);
  }
};

std::vector<Attention> attentions() {
  const at::Tensor seen = at::ones({6, 6}, at::kBool).tril();
  const at::Tensor by_batch = at::stack({seen, seen.triu(-2)}).unsqueeze(1);
  return {{"all", 4, 4, 8, {}},
          {"causal", 4, 4, 8, {}, true},
          {"groups", 4, 2, 8, {}, true},
          {"one key head", 4, 1, 8, {}, true},
          {"other values", 4, 4, 6, {}},
          {"mask", 4, 4, 8, seen},
          {"mask by batch", 4, 4, 8, by_batch},
          {"mask by head", 4, 4, 8, numbers({4, 6, 6}, 5)}};
}

TEST(DistributedAttention, EqualsThatOfPlainTensors) {
  on_mesh({.cp = 2, .tp = 2}, [](Mesh& mesh) {
    for (const Attention& attention : attentions()) {
      const auto leaf = [&](int64_t heads, int64_t size, int64_t seed) {
        return numbers({2, heads, 6, size}, seed).requires_grad_();
      };
      const at::Tensor q = leaf(attention.heads, 8, 1), k = leaf(attention.key_heads, 8, 2),
                       v = leaf(attention.key_heads, attention.value_size, 3);
      const at::Tensor expected = attention(q, k, v);
      const at::Tensor grad = numbers(expected.sizes(), 4);
      expected.backward(grad);
      for (const Placements& cut : {placements({shard(0), shard(1)}),
                                    placements({shard(1), shard(1)}),
                                    placements({replicate(), shard(1)}),
                                    placements({shard(0), shard(0)}),
                                    placements({shard(3), replicate()})}) {
        const auto spread = [&](const at::Tensor& t) {
          return distribute_tensor(t.detach(), mesh, cut).detach().requires_grad_();
        };
        const at::Tensor dq = spread(q), dk = spread(k), dv = spread(v);
        const at::Tensor out = attention(dq, dk, dv);
        const std::string what = std::string(attention.name) + ", " + to_string(cut, 2);
        EXPECT_LE(difference(full_tensor(out.detach()), expected.detach()), 1e-14) << what;
        out.backward(distribute_tensor(grad, mesh, {}));
        EXPECT_LE(difference(full_tensor(dq.grad()), q.grad()), 1e-14) << what;
        EXPECT_LE(difference(full_tensor(dk.grad()), k.grad()), 1e-14) << what;
        EXPECT_LE(difference(full_tensor(dv.grad()), v.grad()), 1e-14) << what;
      }
    }
  });
}

TEST(DistributedAttention, NeedsNoCommunicationForHeadsThatAreCut) {
  on_mesh({.tp = 2}, [](Mesh& mesh) {
    const at::Tensor q =
        distribute_tensor(numbers({1, 4, 8, 4}, 1), mesh, placements({replicate(), shard(1)}));
    std::vector<std::string> lines;
    mesh.trace().set_sink([&](const std::string& line) { lines.push_back(line); });
    at::scaled_dot_product_attention(q, q, q);
    EXPECT_THAT(lines, ::testing::ElementsAre("aten::scaled_dot_product_attention  [R, S(1)]"));
  });
}

TEST(DistributedAttention, IsRefusedWithTheReason) {
  on_mesh({.cp = 2}, [](Mesh& mesh) {
    const auto refusal = [&](int64_t queries,
                             int64_t keys,
                             const at::Tensor& mask,
                             double dropout,
                             bool causal) -> std::string {
      const auto cut = [&](int64_t n) {
        return distribute_tensor(numbers({1, 2, n, 4}, 1), mesh, placements({shard(2)}));
      };
      try {
        at::scaled_dot_product_attention(cut(queries),
                                         cut(keys),
                                         cut(keys),
                                         mask.defined() ? std::optional(mask) : std::nullopt,
                                         dropout,
                                         causal);
      } catch (const Error& e) {
        return e.what();
      }
      return "";
    };
    EXPECT_EQ(refusal(4, 4, {}, 0, true), "");
    EXPECT_THAT(refusal(4, 4, {}, 0.1, true), HasSubstr("dropout is not supported"));
    EXPECT_THAT(refusal(4, 8, {}, 0, false), HasSubstr("the same length"));
    EXPECT_THAT(refusal(3, 3, {}, 0, false), HasSubstr("a multiple of 2"));
    const at::Tensor mask = numbers({4, 4}, 1);
    EXPECT_EQ(refusal(4, 4, mask, 0, false), "");
    EXPECT_THAT(refusal(4, 4, mask.clone().requires_grad_(), 0, false), HasSubstr("a gradient"));
    EXPECT_THAT(refusal(4, 4, mask, 0, true), HasSubstr("is_causal must be false"));
    EXPECT_THAT(refusal(4, 4, mask.view({1, 1, 4, 4}), 0, false), HasSubstr("plain tensor"));
  });
}

// The result that the backward gets may be that of more keys than the tile has.
TEST(TileAttention, ComposedOfProductsEqualsTheFusedKernel) {
  for (const bool causal : {false, true}) {
    for (const int64_t key_heads : {4, 2}) {
      for (const bool masked : {false, true}) {
        if (causal && masked) continue;
        const at::Tensor q = numbers({2, 4, 6, 8}, 1), k = numbers({2, key_heads, 6, 8}, 2),
                         v = numbers({2, key_heads, 6, 8}, 3), grad = numbers({2, 4, 6, 8}, 4);
        TileAttention tile{causal, 0.3, std::nullopt};
        if (masked) {
          tile.mask = at::zeros({6, 6}, at::kDouble);
          tile.mask->narrow(1, 4, 2).fill_(-INFINITY);
        }
        const auto fused = tile.forward(q, k, v), composed = tile.composed_forward(q, k, v);
        EXPECT_LE(difference(composed.out, fused.out), 1e-14);
        EXPECT_LE(difference(composed.lse, fused.lse), 1e-14);
        const TileAttention::Result all{fused.out * 0.5, fused.lse + 0.25};
        const auto a = tile.backward(grad, q, k, v, all),
                   b = tile.composed_backward(grad, q, k, v, all);
        EXPECT_LE(difference(a.q, b.q), 1e-14);
        EXPECT_LE(difference(a.k, b.k), 1e-14);
        EXPECT_LE(difference(a.v, b.v), 1e-14);
      }
    }
  }
}

TEST(TileAttention, OfAQueryThatSeesNoKeyIsZero) {
  const at::Tensor q = numbers({1, 1, 3, 4}, 1);
  TileAttention tile{false, std::nullopt, at::zeros({3, 3}, at::kDouble)};
  tile.mask->select(0, 1).fill_(-INFINITY);
  const auto result = tile.composed_forward(q, q, q);
  EXPECT_EQ(difference(result.out.select(2, 1), at::zeros({1, 1, 4}, at::kDouble)), 0);
  EXPECT_TRUE(result.out.isfinite().all().item<bool>());
}

}  // namespace
}  // namespace yoke::mesh::testing
