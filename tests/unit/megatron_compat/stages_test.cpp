// How layers are divided between pipeline stages, compared with what Megatron says of its
// arguments.
#include "plugins/megatron_compat/stages.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/megatron_compat/plan_request.hpp"
#include "yoke/error.hpp"

namespace yoke::megatron_compat::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using yoke::testing::Dims;
using yoke::testing::LlamaSummary;

// Returns the number of blocks of each stage on 4 ranks, and what has been refused.
struct Divided {
  Divided(const Settings& settings, int64_t layers) {
    const LlamaSummary model(Dims{.layers = layers});
    std::vector<YokeOption> none;
    for (const YokeOptionInfo* info : option_infos()) {
      none.push_back({});
      none.back().key = info->key;
    }
    const Config config(Options(none.data(), none.size()));
    const mesh::Pipeline pipeline = pipeline_of(model.get(), config, settings, 4, messages);
    kind = pipeline.kind;
    for (int s = 0; s < pipeline.stages.count(); ++s) {
      sizes.push_back(pipeline.stages.first_block[s + 1] - pipeline.stages.first_block[s]);
      EXPECT_EQ(pipeline.stages.rank_of[s], s % 4);
    }
  }
  std::vector<int> sizes;
  mesh::PipelineKind kind;
  PlanMessages messages;
};

// The first stage has the embedding and the last one the head, each a block.
TEST(Stages, HaveEqualNumbersOfLayers) {
  const Divided divided(Settings{}, 8);
  EXPECT_THAT(divided.sizes, ElementsAre(3, 2, 2, 3));
  EXPECT_EQ(divided.kind, mesh::PipelineKind::k1F1B);
  EXPECT_THAT(divided.messages, IsEmpty());
}

TEST(Stages, AreInterleavedIfRanksHaveSeveral) {
  Settings settings;
  settings.chunks = 2;
  const Divided by_number(settings, 8);
  EXPECT_THAT(by_number.sizes, ElementsAre(2, 1, 1, 1, 1, 1, 1, 2));
  EXPECT_EQ(by_number.kind, mesh::PipelineKind::kInterleaved);
  settings = {};
  settings.layers_of_chunk = 1;
  EXPECT_EQ(Divided(settings, 8).sizes, by_number.sizes);
  settings.layers_of_chunk = 3;
  EXPECT_THAT(Divided(settings, 8).messages, Not(IsEmpty()));
}

TEST(Stages, MayDifferAtBothEnds) {
  Settings settings;
  settings.first_layers = 1;
  EXPECT_THAT(Divided(settings, 10).sizes, ElementsAre(2, 3, 3, 4));
  settings.last_layers = 3;
  EXPECT_THAT(Divided(settings, 10).sizes, ElementsAre(2, 3, 3, 4));
  EXPECT_THAT(Divided(settings, 11).messages, Not(IsEmpty()));
}

TEST(Stages, MayCountEmbeddingAndLossAsLayers) {
  Settings settings;
  settings.count_embedding = settings.count_loss = true;
  EXPECT_THAT(Divided(settings, 10).sizes, ElementsAre(3, 3, 3, 3));
  settings.count_loss = false;
  EXPECT_THAT(Divided(settings, 11).sizes, ElementsAre(3, 3, 3, 4));
  EXPECT_THAT(Divided(settings, 10).messages, Not(IsEmpty()));
}

TEST(Stages, MayBeWrittenOut) {
  Settings settings;
  settings.layout = "E|t*3|(t)*2,t|L";
  EXPECT_THAT(Divided(settings, 6).sizes, ElementsAre(1, 3, 3, 1));
  EXPECT_THAT(Divided(settings, 7).messages, Not(IsEmpty()));
}

TEST(LayersOfLayout, AreThoseOfTheLettersT) {
  EXPECT_THAT(layers_of_layout("EttL"), ElementsAre(2));
  EXPECT_THAT(layers_of_layout("Et*3|(tt|)*2,t|L"), ElementsAre(3, 2, 2, 1, 0));
  EXPECT_THAT(layers_of_layout("E|((t|)*2tt|)*2L"), ElementsAre(0, 1, 1, 2, 1, 1, 2, 0));
}

TEST(LayersOfLayout, MustBeOfACompleteModel) {
  const std::pair<const char*, const char*> cases[] = {
      {"tE|tL", "one E first"},
      {"ttL", "one E first"},
      {"Et|t", "one L last"},
      {"EtL|t", "one L last"},
      {"EEtL", "one E first"},
      {"", "one L last"},
      {"|EtL", "a stage is empty"},
      {"Et||tL", "a stage is empty"},
      {"Et(tL", "a '(' has no ')'"},
      {"Et)tL", "a ')' has no '('"},
      {"Et*|L", "a number from 1 must follow '*'"},
      {"Et*0L", "a number from 1 must follow '*'"},
      {"Ex|tL", "'x' is none of E, t, L and |"},
      {"Et|m|tL", "multi-token prediction"},
      {"E((t)*99999)*99999L", "letters"},
  };
  for (const auto& [layout, message] : cases) {
    try {
      layers_of_layout(layout);
      ADD_FAILURE() << layout;
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), HasSubstr(message)) << layout;
    }
  }
}

}  // namespace
}  // namespace yoke::megatron_compat::testing
