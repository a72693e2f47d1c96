#include "sdk/compat/activations.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

namespace yoke::compat {
namespace {

// An embedding, two layers and a head. In sequences of one byte each, block b keeps kept[b] bytes
// and passes carry[b] on.
struct Model {
  Model() {
    const std::vector<std::string> names{"embed", "layers.0", "layers.1", "head"};
    blocks.resize(names.size());
    for (size_t b = 0; b < names.size(); ++b) {
      own_names.push_back(names[b]);
      blocks[b].header = YOKE_HEADER(YokeBlock, YOKE_ID_BLOCK);
      blocks[b].activation_bytes = kept[b];
      blocks[b].carry_bytes = carry[b];
    }
    for (size_t b = 0; b < blocks.size(); ++b) {
      blocks[b].name = {own_names[b].data(), own_names[b].size()};
      pointers.push_back(&blocks[b]);
    }
    summary.header = YOKE_HEADER(YokeModelSummary, YOKE_ID_MODEL_SUMMARY);
    summary.blocks = pointers.data();
    summary.num_blocks = pointers.size();
  }
  std::vector<int64_t> kept{1, 100, 200, 30}, carry{10, 10, 10, 0};
  std::vector<std::string> own_names;
  std::vector<YokeBlock> blocks;
  std::vector<const YokeBlock*> pointers;
  YokeModelSummary summary{};
};

TEST(ActivationBytes, AddUpOverAllBlocksAndSequences) {
  const Model model;
  EXPECT_EQ(activation_bytes(model.summary, {}, 1), 331 + 30);
  EXPECT_EQ(activation_bytes(model.summary, {}, 4), 4 * 361);
}

// The largest layer is there while it is computed again; the others keep only what they pass on.
TEST(ActivationBytes, CountOneLayerThatIsComputedAgain) {
  const Model model;
  const auto units = recomputed_units(model.summary, Recompute::kUniform, 1, {0, 4});
  ASSERT_EQ(units.size(), 2u);
  EXPECT_EQ(activation_bytes(model.summary, units, 1), 1 + 30 + 30 + 200);
}

TEST(ActivationBytes, AreUnknownIfABlockDoesNotReportThem) {
  Model model;
  model.blocks[2].activation_bytes = -1;
  EXPECT_EQ(activation_bytes(model.summary, {}, 1), -1);
  model.blocks[2].activation_bytes = 200;
  model.blocks[1].header.struct_size = offsetof(YokeBlock, activation_bytes);  // an older model
  EXPECT_EQ(activation_bytes(model.summary, {}, 1), -1);
}

}  // namespace
}  // namespace yoke::compat
