// Gathers shards on ranks that are threads, and checks which parameters are valid before a block.
#include "plugins/megatron_compat/gather.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/empty_model.hpp"
#include "tests/support/llama_summary.hpp"
#include "tests/unit/ptd/rig.hpp"

namespace yoke::megatron_compat::testing {
namespace {

using compat::Range;
using ptd::testing::Rank;
using yoke::testing::Dims;
using yoke::testing::LlamaSummary;

// The parameters of a rank that knows its own shards alone, and their gather.
struct Rig {
  Rig(const LlamaSummary& summary, const Layout& layout, const Rank& rank)
      : world(rank.world),
        comms(rank.host, plan(), true, false),
        whole(at::arange(layout.size()).to(at::kFloat)),
        model(yoke::testing::empty_model(summary.get())),
        parameters(model, layout, whole.options(), layout.shards(comms.reduce.rank())),
        gather(summary.get(), layout, parameters, comms) {
    parameters.part({0, layout.size()}).fill_(-1);
    for (const Range& own : parameters.owned())
      parameters.part(own).copy_(whole.narrow(0, own.begin, own.count));
    gather.invalidate();
  }
  static YokePlan plan() {
    YokePlan plan{};
    std::fill_n(plan.degree, int{YOKE_NUM_AXES}, 1);
    return plan;
  }
  bool is_valid(const Range& range) const {
    return at::equal(parameters.part(range), whole.narrow(0, range.begin, range.count));
  }
  int64_t gathers() const { return world.counts().at("dp_shard").calls; }

  World& world;
  const Comms comms;
  const at::Tensor whole;
  const YokeModel model;
  const compat::Parameters parameters;
  Gather gather;
};

const Dims kDims{.dim = 8, .layers = 3, .heads = 4, .kv_heads = 2, .ffn_dim = 11, .vocab = 40};

Layout layout_of(const LlamaSummary& summary, int64_t bucket_size, int ranks) {
  return Layout::of(summary.get(), {bucket_size, true, false, ranks});
}

TEST(Gather, MakesTheParametersOfABlockValidAndFetchesOneBucketAhead) {
  for (const int ranks : {2, 3}) {
    for (const int64_t bucket_size : {1, 300, 1'000'000}) {
      const LlamaSummary summary(kDims);
      const Layout layout = layout_of(summary, bucket_size, ranks);
      ptd::testing::on_ranks(yoke::Mesh({1, 1, ranks, 1, 1}), [&](const Rank& rank) {
        Rig rig(summary, layout, rank);
        int64_t next = static_cast<int64_t>(layout.buckets().size());  // last bucket of a block
        for (uint64_t b = 0; b < summary.get().num_blocks; ++b) {
          rig.gather.before(b);
          const YokeBlock& block = *summary.get().blocks[b];
          for (uint64_t i = 0; i < block.num_params; ++i) {
            const int64_t p = block.params[i];
            EXPECT_TRUE(rig.is_valid({layout.offset(p), compat::elements(summary.get(), p)}));
            next = std::min(next, layout.bucket_of(p));
          }
          const int64_t behind = static_cast<int64_t>(layout.buckets().size()) - next;
          EXPECT_EQ(rig.gathers(), behind + (next > 0 ? 1 : 0)) << "block " << b;
        }
        EXPECT_TRUE(rig.is_valid({0, layout.size()}));
      });
    }
  }
}

TEST(Gather, OfAllBucketsIsNotRepeated) {
  const LlamaSummary summary(kDims);
  const Layout layout = layout_of(summary, 300, 2);
  ptd::testing::on_ranks(yoke::Mesh({1, 1, 2, 1, 1}), [&](const Rank& rank) {
    Rig rig(summary, layout, rank);
    rig.gather.all();
    EXPECT_TRUE(rig.is_valid({0, layout.size()}));
    const int64_t gathers = rig.gathers();
    EXPECT_EQ(gathers, static_cast<int64_t>(layout.buckets().size()));
    rig.gather.before(0);
    rig.gather.all();
    EXPECT_EQ(rig.gathers(), gathers);
  });
}

}  // namespace
}  // namespace yoke::megatron_compat::testing
