// How layers are divided between pipeline ranks.
#include "plugins/nanotron_compat/stages.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/llama_summary.hpp"

namespace yoke::nanotron_compat::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using yoke::testing::Dims;
using yoke::testing::LlamaSummary;

std::vector<int> sizes(const Dims& dims, int pp, PlanMessages& messages) {
  const LlamaSummary model(dims);
  const mesh::Stages stages = pipeline_of(model.get(), {}, pp, messages).stages;
  std::vector<int> sizes;
  for (int s = 0; s < stages.count(); ++s)
    sizes.push_back(stages.first_block[s + 1] - stages.first_block[s]);
  return sizes;
}

// Dims{} is the model of the first row: a layer costs 4 x 64 x 64 + 3 x 256 x 64 = 65,536, as much
// as the head. A rank ends with the layer that exceeds its share, so it has more than that.
TEST(Stages, EndWithTheLayerThatExceedsTheShareOfTheRank) {
  PlanMessages messages;
  EXPECT_THAT(sizes(Dims{}, 2, messages), ElementsAre(3, 1));
  EXPECT_THAT(sizes(Dims{.layers = 7}, 2, messages), ElementsAre(6, 3));
  EXPECT_THAT(sizes(Dims{.layers = 7}, 4, messages), ElementsAre(4, 2, 2, 1));
  // A small vocabulary leaves more layers for the last rank.
  EXPECT_THAT(sizes(Dims{.layers = 7, .vocab = 16}, 2, messages), ElementsAre(5, 4));
  EXPECT_THAT(messages, IsEmpty());
}

TEST(Stages, AreRefusedIfARankWouldHaveNothing) {
  PlanMessages messages;
  EXPECT_THAT(sizes(Dims{.layers = 2}, 4, messages), IsEmpty());
  EXPECT_EQ(messages.size(), 1u);
}

TEST(Engine, DecidesTheOrder) {
  const LlamaSummary model(Dims{});
  PlanMessages messages;
  Settings settings;
  EXPECT_EQ(pipeline_of(model.get(), settings, 2, messages).kind, mesh::PipelineKind::kGpipe);
  settings.one_f_one_b = true;
  EXPECT_EQ(pipeline_of(model.get(), settings, 2, messages).kind, mesh::PipelineKind::k1F1B);
}

}  // namespace
}  // namespace yoke::nanotron_compat::testing
