// Compares attention in tiles with attention over the whole sequence.
#include "sdk/mesh/dtensor/sequence_attention.hpp"

#include <gtest/gtest.h>

#include "tests/unit/mesh/dtensor/on_mesh.hpp"

namespace yoke::mesh::testing {
namespace {

// Returns the positions of a rank in the whole sequence, in its local order.
std::vector<int64_t> positions(SequenceOrder order, int64_t length, int rank, int ranks) {
  std::vector<int64_t> p;
  if (order == SequenceOrder::kPlain) {
    for (int64_t i = 0; i < length; ++i) p.push_back(rank * length + i);
    return p;
  }
  const int64_t half = length / 2;
  for (int64_t i = 0; i < half; ++i) p.push_back(rank * half + i);
  for (int64_t i = 0; i < half; ++i) p.push_back((2 * ranks - 1 - rank) * half + i);
  return p;
}

TEST(Tiles, CoverWhatAQueryMaySeeAndNothingElse) {
  for (const SequenceOrder order : {SequenceOrder::kPlain, SequenceOrder::kHeadTail}) {
    for (const bool causal : {false, true}) {
      for (const int ranks : {1, 2, 3, 4}) {
        const int64_t n = 4;
        for (int mine = 0; mine < ranks; ++mine) {
          for (int theirs = 0; theirs < ranks; ++theirs) {
            const auto q = positions(order, n, mine, ranks), k = positions(order, n, theirs, ranks);
            std::vector<std::vector<int>> seen(n, std::vector<int>(n, 0));
            for (const Tile& t : tiles_of(order, causal, n, mine, theirs)) {
              for (int64_t i = 0; i < t.queries.count; ++i) {
                for (int64_t j = 0; j < t.keys.count; ++j) {
                  if (!t.causal || j <= i) ++seen[t.queries.begin + i][t.keys.begin + j];
                }
              }
            }
            for (int64_t i = 0; i < n; ++i) {
              for (int64_t j = 0; j < n; ++j)
                EXPECT_EQ(seen[i][j], !causal || k[j] <= q[i] ? 1 : 0);
            }
          }
        }
      }
    }
  }
}

TEST(Tiles, HeadTailGivesAllRanksTheSameWork) {
  for (const int ranks : {2, 4, 8}) {
    std::vector<int64_t> work;
    for (int mine = 0; mine < ranks; ++mine) {
      int64_t sum = 0;
      for (int theirs = 0; theirs < ranks; ++theirs) {
        for (const Tile& t : tiles_of(SequenceOrder::kHeadTail, true, 8, mine, theirs))
          sum += t.causal ? t.queries.count * (t.queries.count + 1) / 2
                          : t.queries.count * t.keys.count;
      }
      work.push_back(sum);
    }
    for (const int64_t w : work) EXPECT_EQ(w, work[0]);
  }
}

TEST(Positions, AreThoseThatTheRanksHave) {
  for (const SequenceOrder order : {SequenceOrder::kPlain, SequenceOrder::kHeadTail}) {
    for (int rank = 0; rank < 3; ++rank) {
      std::vector<int64_t> got;
      for (const Part& p : positions_of_rank(order, 4, rank, 3)) {
        for (int64_t i = 0; i < p.count; ++i) got.push_back(p.begin + i);
      }
      EXPECT_EQ(got, positions(order, 4, rank, 3));
    }
  }
}

struct Case {
  int ranks;
  SequenceExchange exchange;
  SequenceOrder order;
  bool causal;
  int64_t kv_heads;
  at::ScalarType type;
  double bound;
  int64_t window = 0;  // a query sees this many keys up to its own, by a mask; 0 = no mask
};

at::Tensor window_mask(int64_t n, int64_t window, at::ScalarType type) {
  const at::Tensor seen = at::ones({n, n}, at::kBool).tril().triu(1 - window);
  return at::zeros({n, n}, type).masked_fill(seen.logical_not(), -INFINITY);
}

class SequenceAttentionOn : public ::testing::TestWithParam<Case> {};

TEST_P(SequenceAttentionOn, ValuesAndGradientsAreThoseOfTheWholeSequence) {
  const Case c = GetParam();
  const int64_t n = 16, local = n / c.ranks;
  on_mesh(
      {.cp = c.ranks},
      [&](Mesh& mesh) {
        const auto make = [&](int64_t heads, int64_t seed) {
          return numbers({2, heads, n, 8}, seed, c.type);
        };
        const at::Tensor q = make(4, 1).requires_grad_(), k = make(c.kv_heads, 2).requires_grad_(),
                         v = make(c.kv_heads, 3).requires_grad_(), grad = make(4, 4);
        at::Tensor mask;
        if (c.window > 0) mask = window_mask(n, c.window, c.type);
        const at::Tensor expected =
            at::scaled_dot_product_attention(q,
                                             k,
                                             v,
                                             mask.defined() ? std::optional(mask) : std::nullopt,
                                             0.0,
                                             c.causal,
                                             {},
                                             c.kv_heads != 4);
        expected.backward(grad);

        const at::Tensor mine = at::tensor(positions(c.order, local, mesh.rank(0), c.ranks));
        const auto cut = [&](const at::Tensor& t) { return t.detach().index_select(2, mine); };
        const SequenceAttention attention{mesh, 0, c.causal, std::nullopt, mask};
        const auto result = attention.forward(cut(q), cut(k), cut(v));
        EXPECT_LE(difference(result.out, cut(expected)), c.bound);
        const auto grads = attention.backward(cut(grad), cut(q), cut(k), cut(v), result);
        EXPECT_LE(difference(grads.q, cut(q.grad())), c.bound);
        EXPECT_LE(difference(grads.k, cut(k.grad())), c.bound);
        EXPECT_LE(difference(grads.v, cut(v.grad())), c.bound);
      },
      [&](Mesh::Axis& cp, Mesh::Axis&) {
        cp.exchange = c.exchange;
        cp.order = c.order;
      });
}

constexpr auto kRing = SequenceExchange::kRing, kGather = SequenceExchange::kAllGather;
constexpr auto kPlain = SequenceOrder::kPlain, kHeadTail = SequenceOrder::kHeadTail;
INSTANTIATE_TEST_SUITE_P(
    Cases,
    SequenceAttentionOn,
    ::testing::Values(Case{2, kRing, kHeadTail, true, 4, at::kDouble, 1e-14},
                      Case{4, kRing, kHeadTail, true, 2, at::kDouble, 1e-14},
                      Case{4, kRing, kPlain, true, 2, at::kDouble, 1e-14},
                      Case{4, kGather, kHeadTail, true, 4, at::kDouble, 1e-14},
                      Case{2, kGather, kPlain, true, 1, at::kDouble, 1e-14},
                      Case{4, kRing, kHeadTail, false, 4, at::kDouble, 1e-14},
                      Case{2, kGather, kHeadTail, false, 2, at::kDouble, 1e-14},
                      Case{2, kRing, kHeadTail, false, 2, at::kDouble, 1e-14, 5},
                      Case{4, kRing, kHeadTail, false, 2, at::kDouble, 1e-14, 3},
                      Case{4, kRing, kPlain, false, 4, at::kDouble, 1e-14, 3},
                      Case{4, kGather, kHeadTail, false, 4, at::kDouble, 1e-14, 1},
                      Case{2, kGather, kPlain, false, 2, at::kDouble, 1e-14, 12},
                      Case{4, kRing, kHeadTail, true, 2, at::kFloat, 5e-6},
                      Case{4, kRing, kHeadTail, true, 2, at::kBFloat16, 6e-2}));

}  // namespace
}  // namespace yoke::mesh::testing
