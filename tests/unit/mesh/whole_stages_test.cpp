#include "sdk/mesh/schedule/whole_stages.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "sdk/mesh/schedule/checker.hpp"
#include "tests/unit/mesh/chain_pipeline.hpp"

namespace yoke::mesh {
namespace {

using testing::chain;

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(WholeStages, TheStageThatIsNeededLastLeaves) {
  // At the third use, stage 0 is needed before stage 1.
  EXPECT_THAT(evictions({0, 1, 2, 0, 1}, 3, 2),
              ElementsAre(ElementsAre(4), ElementsAre(2), IsEmpty()));
}

TEST(WholeStages, NoneLeavesIfAllMayStay) {
  EXPECT_THAT(evictions({0, 1, -1, 0, 1}, 2, 2), ElementsAre(IsEmpty(), IsEmpty()));
}

// Returns the least number of gathers, by trying every choice.
int fewest_gathers(const std::vector<int>& uses, size_t at, std::vector<int> here, size_t most) {
  if (at == uses.size()) return 0;
  if (std::find(here.begin(), here.end(), uses[at]) != here.end())
    return fewest_gathers(uses, at + 1, here, most);
  if (here.size() < most) {
    here.push_back(uses[at]);
    return 1 + fewest_gathers(uses, at + 1, here, most);
  }
  int fewest = static_cast<int>(uses.size());
  for (int& out : here) {
    const int before = std::exchange(out, uses[at]);
    fewest = std::min(fewest, 1 + fewest_gathers(uses, at + 1, here, most));
    out = before;
  }
  return fewest;
}

TEST(WholeStages, NoChoiceLeadsToFewerGathers) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const auto roll = [&](int n) { return static_cast<int>(random() % n); };
    const int stages = 2 + roll(3), most = 1 + roll(stages);
    std::vector<int> uses(10);
    for (int& use : uses) use = roll(stages);
    std::vector<int> kinds = uses;
    std::sort(kinds.begin(), kinds.end());
    const auto distinct = std::unique(kinds.begin(), kinds.end()) - kinds.begin();
    // Every stage is gathered once, and again after it has left and is used.
    int gathers = static_cast<int>(distinct);
    const auto left = evictions(uses, stages, most);
    for (int s = 0; s < stages; ++s) {
      for (const size_t at : left[s])
        gathers += std::find(uses.begin() + static_cast<long>(at), uses.end(), s) != uses.end();
    }
    EXPECT_EQ(gathers, fewest_gathers(uses, 0, {}, static_cast<size_t>(most))) << "seed " << seed;
  }
}

// A unit that is about to be gathered may exist beside the k stages.
TEST(WholeStages, NoMoreStagesAreWholeThanAllowed) {
  for (const PipelineKind kind : {PipelineKind::kInterleaved, PipelineKind::kLoopedBfs}) {
    for (const int whole : {1, 2, 3}) {
      for (StepSpec& spec : chain({kind, 4, 4, 16})) {
        spec.shards = 2;
        spec.whole_stages = whole;
        int now = 0, most = 0;
        for (const Action& a : build_schedule(spec)) {
          now += a.kind == ActionKind::kUnshard ? 1 : a.kind == ActionKind::kReshard ? -1 : 0;
          most = std::max(most, now);
        }
        EXPECT_LE(most, whole + 1) << info_of(kind).name;
        EXPECT_GE(most, whole) << info_of(kind).name;
      }
    }
  }
}

struct Counts {
  int gathers = 0, reductions = 0;

  bool operator==(const Counts&) const = default;
};

// Returns the most gathers and reductions of a rank, of 4 ranks with 4 chunks and 16 micro-batches.
// Each stage is one unit.
Counts counts_of(PipelineKind kind, int whole) {
  Counts most;
  for (StepSpec& spec : chain({kind, 4, 4, 16})) {
    spec.shards = 2;
    spec.whole_stages = whole;
    const std::vector<Action> list = build_schedule(spec);
    EXPECT_TRUE(check_rank(spec, list).empty());
    Counts own;
    for (const Action& a : list) {
      own.gathers += a.kind == ActionKind::kUnshard;
      own.reductions += a.kind == ActionKind::kReduceGrad;
    }
    most = {std::max(most.gathers, own.gathers), std::max(most.reductions, own.reductions)};
  }
  return most;
}

// An independent simulation counts the same, but 99 and 7 gathers with a single whole stage: there,
// a stage that has just left is often prefetched at once, and such a round trip is dropped.
TEST(WholeStages, FewerWholeStagesAreGatheredAndReducedMoreOften) {
  EXPECT_EQ(counts_of(PipelineKind::kInterleaved, 0), (Counts{4, 4}));
  EXPECT_EQ(counts_of(PipelineKind::kInterleaved, 4), (Counts{4, 4}));
  EXPECT_EQ(counts_of(PipelineKind::kInterleaved, 2), (Counts{18, 15}));
  EXPECT_EQ(counts_of(PipelineKind::kInterleaved, 1), (Counts{56, 52}));
  EXPECT_EQ(counts_of(PipelineKind::kLoopedBfs, 2), (Counts{6, 4}));
  EXPECT_EQ(counts_of(PipelineKind::kLoopedBfs, 1), (Counts{6, 4}));
}

}  // namespace
}  // namespace yoke::mesh
