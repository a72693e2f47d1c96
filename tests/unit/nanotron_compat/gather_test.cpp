// Gathers slices on ranks that are threads, and checks every element of every rank.
#include "plugins/nanotron_compat/gather.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/empty_model.hpp"
#include "tests/support/llama_summary.hpp"
#include "tests/unit/ptd/rig.hpp"

namespace yoke::nanotron_compat::testing {
namespace {

using compat::Piece;
using compat::Range;
using yoke::testing::Dims;
using yoke::testing::LlamaSummary;

// Norms have 8 elements. Queries, keys and values together have 128, and gate and up 176.
constexpr Dims kDims{.dim = 8, .layers = 2, .heads = 4, .kv_heads = 2, .ffn_dim = 11, .vocab = 40};

// Returns the elements that a gather moves: in each bucket all ranks send as much as the one that
// has most of it.
int64_t plain_elements(const Layout& layout, int ranks) {
  int64_t elements = 0;
  for (const Range& bucket : layout.buckets()) {
    int64_t most = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      int64_t own = 0;
      for (const Range& slice : layout.slices(rank, ranks)) {
        if (slice.begin >= bucket.begin && slice.begin < bucket.begin + bucket.count)
          own += slice.count;
      }
      most = std::max(most, own);
    }
    elements += ranks * most;
  }
  return elements;
}

// Every rank knows its own slices alone, and has them all after the gather.
void expect_gathered(int ranks, int64_t bucket_elements) {
  const LlamaSummary summary(kDims);
  const YokeModel model = yoke::testing::empty_model(summary.get());
  const Layout layout = Layout::of(summary.get(), bucket_elements);
  const at::Tensor whole = at::arange(layout.size()).to(at::kFloat);
  ptd::testing::on_ranks(yoke::Mesh({1, 1, ranks, 1, 1}), [&](const ptd::testing::Rank& rank) {
    YokePlan plan{};
    std::fill_n(plan.degree, int{YOKE_NUM_AXES}, 1);
    const Comms comms(rank.host, plan, /*zero=*/true);
    const compat::Parameters parameters(
        model, layout, whole.options(), layout.slices(rank.host.rank, ranks));
    const at::Tensor values = parameters.part({0, layout.size()});
    values.fill_(-1);
    for (const Range& own : parameters.owned())
      parameters.part(own).copy_(whole.narrow(0, own.begin, own.count));
    const Gather gather(layout, parameters, comms);
    gather.run();
    EXPECT_TRUE(at::equal(values, whole))
        << "rank " << rank.host.rank << " of " << ranks << ", buckets of " << bucket_elements;
    EXPECT_EQ(gather.elements(), plain_elements(layout, ranks));
    const CommCount count = rank.world.counts().at("dp_shard");
    EXPECT_EQ(count.calls, static_cast<int64_t>(layout.buckets().size()));
    EXPECT_EQ(count.bytes, 4 * gather.elements());
  });
}

// Buckets of one parameter each, of several, and one of all. No number of ranks but 2 divides all
// parameters, and of 9 ranks the last one has no slice of a norm.
TEST(Gather, BringsEverySliceToEveryRank) {
  for (const int ranks : {2, 3, 5, 9}) {
    for (const int64_t bucket_elements : {1, 200, 1'000'000})
      expect_gathered(ranks, bucket_elements);
  }
}

// The cases above are there for these slices.
TEST(Gather, IsTestedWithSlicesThatAreShortOrEmptyOrCrossParameters) {
  const LlamaSummary summary(kDims);
  const Layout layout = Layout::of(summary.get(), 200);
  EXPECT_GT(layout.buckets().size(), 2u);
  EXPECT_LT(layout.buckets().size(), layout.slots().size());
  EXPECT_GT(layout.slices(0, 3)[0].count, layout.slices(2, 3)[0].count);
  EXPECT_GT(layout.slices(0, 9).size(), layout.slices(8, 9).size());
  const std::vector<Range> slices = layout.slices(1, 3);
  EXPECT_TRUE(std::any_of(slices.begin(), slices.end(), [&](const Range& slice) {
    return layout.pieces(slice).size() > 1;
  }));
}

}  // namespace
}  // namespace yoke::nanotron_compat::testing
