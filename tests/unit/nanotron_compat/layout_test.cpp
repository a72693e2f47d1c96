// Compares slices and buckets with plain versions of nanotron's and PyTorch's rules, and with
// layouts that nanotron itself prints.
#include "plugins/nanotron_compat/layout.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <sstream>

#include "tests/support/llama_summary.hpp"
#include "tests/support/setting_table.hpp"
#include "yoke/text.hpp"

namespace yoke::nanotron_compat::testing {
namespace {

using compat::Piece;
using compat::Range;
using compat::Slot;
using ::testing::ElementsAre;
using yoke::testing::Dims;
using yoke::testing::LlamaSummary;

// The rule as nanotron writes it: sizes of all ranks, then running sums.
std::vector<int64_t> plain_begins(int64_t n, int ranks) {
  std::vector<int64_t> sizes(ranks, (n - 1) / ranks + 1);
  const int64_t surplus = ((n - 1) / ranks + 1) * ranks - n;
  for (int64_t i = 0; i < surplus; ++i) --sizes[ranks - 1 - i];
  std::vector<int64_t> begins{0};
  for (const int64_t size : sizes) begins.push_back(begins.back() + size);
  return begins;
}

TEST(Slice, IsThatOfThePlainRule) {
  for (int64_t n = 1; n <= 70; ++n) {
    for (int ranks = 1; ranks <= 9; ++ranks) {
      const std::vector<int64_t> begins = plain_begins(n, ranks);
      ASSERT_EQ(begins.back(), n);
      for (int rank = 0; rank < ranks; ++rank) {
        const Range own = slice(n, rank, ranks);
        EXPECT_EQ(own.begin, begins[rank]) << n << " elements, rank " << rank << " of " << ranks;
        EXPECT_EQ(own.begin + own.count, begins[rank + 1])
            << n << " elements, rank " << rank << " of " << ranks;
      }
    }
  }
}

TEST(Slices, AreThoseThatNanotronPrints) {
  std::istringstream lines(yoke::testing::read_source("tests/unit/nanotron_compat/slices.txt"));
  const LlamaSummary model(Dims{});
  const Layout layout = Layout::of(model.get(), 1);
  std::map<std::string, Slot> slots;
  for (const Slot& slot : layout.slots()) slots[slot.name] = slot;
  int compared = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("#")) continue;
    std::istringstream words(line);
    int ranks = 0;
    std::string name;
    words >> ranks >> name;
    ASSERT_EQ(slots.count(name), 1u) << name;
    const Slot& slot = slots[name];
    std::string ours;
    for (int rank = 0; rank < ranks; ++rank) {
      for (const Range& own : layout.slices(rank, ranks)) {
        if (own.begin < slot.begin || own.begin >= slot.end) continue;
        ours += concat(" ", own.begin - slot.begin, ":", own.begin + own.count - slot.begin);
      }
    }
    EXPECT_EQ(ours, line.substr(concat(ranks, " ", name).size())) << name;
    ++compared;
  }
  EXPECT_EQ(compared, 2 * static_cast<int>(layout.slots().size()));
}

// Every element of every parameter belongs to one rank, and no slice is empty.
TEST(Slices, CoverEveryParameterOnce) {
  for (const int ranks : {1, 2, 3, 5, 100}) {
    for (const bool tied : {false, true}) {
      const LlamaSummary model(Dims{.tied = tied});
      const Layout layout = Layout::of(model.get(), 1);
      std::vector<int64_t> next(model.get().num_params, 0);
      std::vector<std::vector<Piece>> of_param(model.get().num_params);
      for (int rank = 0; rank < ranks; ++rank) {
        for (const Range& own : layout.slices(rank, ranks)) {
          EXPECT_GT(own.count, 0);
          for (const Piece& p : layout.pieces(own)) of_param[p.param].push_back(p);
        }
      }
      for (size_t p = 0; p < of_param.size(); ++p) {
        for (const Piece& piece : of_param[p]) {
          EXPECT_EQ(piece.begin, next[p]);
          EXPECT_EQ(piece.offset, layout.offset(static_cast<int64_t>(p)) + piece.begin);
          next[p] += piece.count;
        }
        EXPECT_EQ(next[p], compat::elements(model.get(), static_cast<int64_t>(p)));
      }
    }
  }
}

TEST(Layout, HasTheParametersOfNanotronInForwardOrderWithoutGaps) {
  const LlamaSummary model(Dims{.layers = 1});
  const Layout layout = Layout::of(model.get(), 1);
  std::vector<std::string> names;
  int64_t end = 0;
  for (const Slot& slot : layout.slots()) {
    EXPECT_EQ(slot.begin, end) << slot.name;
    end = slot.end;
    names.push_back(slot.name);
  }
  EXPECT_EQ(layout.size(), end);
  EXPECT_EQ(names, parameter_names(1));
  EXPECT_THAT(names,
              ElementsAre("model.token_position_embeddings.pp_block.token_embedding.weight",
                          "model.decoder.0.pp_block.input_layernorm.weight",
                          "model.decoder.0.pp_block.attn.qkv_proj.weight",
                          "model.decoder.0.pp_block.attn.o_proj.weight",
                          "model.decoder.0.pp_block.post_attention_layernorm.weight",
                          "model.decoder.0.pp_block.mlp.gate_up_proj.weight",
                          "model.decoder.0.pp_block.mlp.down_proj.weight",
                          "model.final_layer_norm.pp_block.weight",
                          "model.lm_head.pp_block.weight"));
}

// The parts of a fused parameter are cut together: rank 1 of 3 begins among the queries and ends
// among the values.
TEST(Slices, AreCutFromFusedParameters) {
  const LlamaSummary model(Dims{.dim = 8, .layers = 1, .heads = 4, .kv_heads = 2});
  const Layout layout = Layout::of(model.get(), 1);
  const Slot& qkv = layout.slots()[2];
  ASSERT_EQ(qkv.end - qkv.begin, (8 + 4 + 4) * 8);
  const Range own = layout.slices(1, 3)[2];
  EXPECT_EQ(own.begin - qkv.begin, 43);
  EXPECT_EQ(own.count, 43);
  const std::vector<Piece> pieces = layout.pieces(own);
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[0].begin, 43);
  EXPECT_EQ(pieces[0].count, 64 - 43);
  EXPECT_EQ(pieces[1].count, 43 - (64 - 43));
}

// PyTorch's rule: parameters from the last to the first fill a bucket until it has the size. The
// last parameter has exactly 65536 elements.
TEST(Buckets, AreFilledFromTheEnd) {
  const LlamaSummary model(Dims{});
  for (const int64_t full : {1, 5000, 20000, 65536, 1000000}) {
    const Layout layout = Layout::of(model.get(), full);
    std::vector<Range> plain;
    for (size_t i = layout.slots().size(); i-- > 0;) {
      const Slot& slot = layout.slots()[i];
      if (plain.empty() || plain.back().count >= full) plain.push_back({slot.end, 0});
      plain.back() = {slot.begin, plain.back().count + slot.end - slot.begin};
      EXPECT_EQ(slot.bucket, static_cast<int64_t>(plain.size()) - 1);
    }
    ASSERT_EQ(layout.buckets().size(), plain.size()) << full;
    int64_t end = layout.size();
    for (size_t b = 0; b < plain.size(); ++b) {
      EXPECT_EQ(layout.buckets()[b].begin, plain[b].begin);
      EXPECT_EQ(layout.buckets()[b].begin + layout.buckets()[b].count, end);
      end = plain[b].begin;
    }
    EXPECT_EQ(end, 0);
  }
  EXPECT_EQ(Layout::of(model.get(), 1).buckets().size(), parameter_names(2).size());
  EXPECT_EQ(Layout::of(model.get(), 1000000).buckets().size(), 1u);
}

}  // namespace
}  // namespace yoke::nanotron_compat::testing
