// Tests that every change of placements keeps the value of the whole tensor.
#include "sdk/mesh/dtensor/redistribute.hpp"

#include <gtest/gtest.h>

#include <random>

#include "tests/unit/mesh/dtensor/on_mesh.hpp"

namespace yoke::mesh::testing {
namespace {

class Dice {
 public:
  explicit Dice(unsigned seed) : engine_(seed) {}
  int64_t roll(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }

 private:
  std::mt19937 engine_;
};

// Returns a placement whose number of blocks divides the dim.
Placement random_placement(Dice& dice, const Sizes& sizes) {
  const int64_t kind = dice.roll(0, 5);
  if (kind == 0) return replicate();
  if (kind == 1) return partial(static_cast<Reduce>(dice.roll(0, 2)));
  const int64_t dim = dice.roll(0, static_cast<int64_t>(sizes.size()) - 1);
  const int64_t blocks = dice.roll(1, 3);
  return shard(dim, sizes[dim] % blocks == 0 ? blocks : 1);
}

// Returns placements for two axes. The inner axis cuts what the outer one left.
Placements random_placements(Dice& dice, const Sizes& sizes, const Coordinates& at) {
  Placements p;
  p[0] = random_placement(dice, sizes);
  p[1] = random_placement(dice, sizes);
  const bool uneven = p[1].is_shard() && local_sizes(sizes, p, at, 1)[p[1].dim] % p[1].blocks != 0;
  // If the outer axis leaves parts of different sizes, some of them cannot be divided into equal
  // blocks, so use one block.
  if (uneven || (p[0].is_shard() && p[1].is_shard(p[0].dim))) p[1].blocks = 1;
  // A maximum of sums is not a sum of maxima, so both axes must use the same operation.
  if (p[0].is_partial() && p[1].is_partial()) p[1].reduce = p[0].reduce;
  return p;
}

// Returns this rank's tensor under `p`, cut from the whole. Partial values differ between ranks.
at::Tensor lay(const at::Tensor& whole, Mesh& mesh, const Placements& p) {
  at::Tensor t = whole;
  for (int a = 0; a < 2; ++a) {
    const Coordinate at = mesh.coordinates()[a];
    if (p[a].is_shard()) {
      std::vector<at::Tensor> parts;
      for (const at::Tensor& block : t.chunk(p[a].blocks, p[a].dim)) {
        const Part mine = part_of(block.size(p[a].dim), at);
        parts.push_back(block.narrow(p[a].dim, mine.begin, mine.count));
      }
      t = at::cat(parts, p[a].dim);
    } else if (p[a].is_partial()) {
      // The factors add up to 1, or have the mean 1; the offsets have the maximum 0.
      const double r = at.rank, n = at.size;
      if (p[a].reduce == Reduce::kSum) t = t * ((r + 1) / (n * (n + 1) / 2));
      if (p[a].reduce == Reduce::kAvg) t = t * ((r + 1) / ((n + 1) / 2));
      if (p[a].reduce == Reduce::kMax) t = t - r;
    }
  }
  return t.contiguous();
}

struct Shape {
  int cp, tp;
};
class Redistribute : public ::testing::TestWithParam<Shape> {};

TEST_P(Redistribute, EveryTransitionKeepsTheWholeTensor) {
  on_mesh({.cp = GetParam().cp, .tp = GetParam().tp}, [&](Mesh& mesh) {
    for (unsigned seed = 0; seed < 400; ++seed) {
      Dice dice(seed);
      Sizes sizes;
      for (int64_t d = dice.roll(1, 3); d > 0; --d) sizes.push_back(dice.roll(1, 12));
      const Placements from = random_placements(dice, sizes, mesh.coordinates());
      const Placements to = random_placements(dice, sizes, mesh.coordinates());
      const at::Tensor whole = numbers(sizes, seed);
      const at::Tensor there = redistribute_local(mesh, lay(whole, mesh, from), sizes, from, to);
      EXPECT_EQ(there.sizes(), at::IntArrayRef(local_sizes(sizes, to, mesh.coordinates())));
      const at::Tensor back = redistribute_local(mesh, there, sizes, to, {});
      EXPECT_LE(difference(back, whole), 1e-15)
          << "seed " << seed << ": " << to_string(from, 2) << " -> " << to_string(to, 2);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Meshes,
    Redistribute,
    ::testing::Values(Shape{1, 2}, Shape{1, 3}, Shape{2, 2}, Shape{3, 2}, Shape{2, 4}));

TEST(RedistributeLocal, OnlyWhatMovesCosts) {
  EXPECT_EQ(redistribute_cost(shard(0), shard(0), 100), 0);
  EXPECT_LT(redistribute_cost(replicate(), shard(0), 100), 2);
  EXPECT_LT(redistribute_cost(partial(), shard(0), 100),
            redistribute_cost(partial(), replicate(), 100));
}

}  // namespace
}  // namespace yoke::mesh::testing
