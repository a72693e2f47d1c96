// Compares layouts with those that Megatron itself prints (layouts.txt), and checks properties that
// hold for all of them.
#include "plugins/megatron_compat/layout.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "tests/support/llama_summary.hpp"
#include "yoke/text.hpp"

namespace yoke::megatron_compat::testing {
namespace {

using compat::Piece;
using compat::Slot;
using yoke::testing::Dims;
using yoke::testing::LlamaSummary;

struct Case {
  std::string name;
  Dims dims;
  Settings settings;
  int ranks = 1;
  std::vector<uint64_t> stage_ends;  // ends of pipeline stages, as indices into the blocks
  bool first_stage = true;
  std::string elements, buckets, params, names;  // as Megatron prints them
};

void read_option(const std::string& word, Case& c) {
  const size_t equals = word.find('=');
  const std::string key = word.substr(0, equals);
  const int64_t value = equals == std::string::npos ? 0 : std::stoll(word.substr(equals + 1));
  if (key == "ranks") c.ranks = static_cast<int>(value);
  if (key == "tied") c.dims.tied = true;
  if (key == "distributed") c.settings.distributed_optimizer = true;
  if (key == "overlap") c.settings.overlap_grad_reduce = true;
  if (key == "pad") c.settings.pad_buckets = true;
  if (key == "bucket_size") c.settings.bucket_size = value;
  if (key == "instances") c.settings.instances = value;
  if (key == "tp") c.dims.tp = value;
  if (key == "no_embedding") c.dims.embedding = c.first_stage = false;
  if (key == "no_head") c.dims.head = false;
  if (key == "layer") c.dims.own_layers.push_back(value);
  if (key == "stage_end") c.stage_ends.push_back(static_cast<uint64_t>(value));
}

std::vector<Case> cases() {
  std::ifstream file(std::string(std::getenv("YOKE_SOURCE")) +
                     "/tests/unit/megatron_compat/layouts.txt");
  std::vector<Case> all;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string kind;
    words >> kind;
    if (kind == "case") {
      Case& c = all.emplace_back();
      Dims& d = c.dims;
      words >> c.name >> d.dim >> d.layers >> d.heads >> d.kv_heads >> d.ffn_dim >> d.vocab;
      for (std::string word; words >> word;) read_option(word, c);
      continue;
    }
    const std::string rest = line.substr(std::min(kind.size() + 1, line.size()));
    if (kind == "elements") all.back().elements = rest;
    if (kind == "buckets") all.back().buckets = rest;
    if (kind == "params") all.back().params = rest;
    if (kind == "names") all.back().names = rest;
  }
  return all;
}

int shards_of(const Case& c) {
  return c.settings.distributed_optimizer ? c.ranks / static_cast<int>(c.settings.instances) : 1;
}

Layout layout_of(const Case& c, const YokeModelSummary& model) {
  BucketRules rules = bucket_rules(model, c.settings, shards_of(c), c.ranks, c.first_stage);
  rules.stage_ends = c.stage_ends;
  const bool divided = !c.dims.embedding || !c.dims.head;
  rules.is_shared = [&](int64_t p) { return divided && c.dims.tied && p == 0; };
  return Layout::of(model, rules);
}

TEST(Layouts, AreThoseOfMegatron) {
  const std::vector<Case> all = cases();
  ASSERT_GE(all.size(), 20u);
  for (const Case& c : all) {
    const LlamaSummary model(c.dims);
    const Layout layout = layout_of(c, model.get());
    std::string buckets, params, names;
    for (const Bucket& b : layout.buckets())
      buckets += concat(buckets.empty() ? "" : " ", b.begin, ":", b.size, ":", b.used);
    for (const Slot& s : layout.slots()) {
      params += concat(params.empty() ? "" : " ", s.begin, ":", s.end, ":", s.bucket);
      names += (names.empty() ? "" : " ") + s.name;
    }
    EXPECT_EQ(concat(layout.size()), c.elements) << c.name;
    EXPECT_EQ(buckets, c.buckets) << c.name;
    EXPECT_EQ(params, c.params) << c.name;
    if (!c.names.empty()) {
      EXPECT_EQ(names, c.names) << c.name;
    }
  }
}

// Every element of every parameter lies in exactly one shard of one bucket.
TEST(Shards, CoverEveryParameterOnce) {
  for (const Case& c : cases()) {
    const LlamaSummary model(c.dims);
    const Layout layout = layout_of(c, model.get());
    std::vector<int64_t> next(model.get().num_params, 0);
    for (size_t b = 0; b < layout.buckets().size(); ++b) {
      int64_t end = layout.buckets()[b].begin;
      for (int rank = 0; rank < shards_of(c); ++rank) {
        const Bucket shard = layout.shard(static_cast<int64_t>(b), rank);
        EXPECT_EQ(shard.begin, end) << c.name;
        end = shard.begin + shard.size;
        for (const Piece& p : layout.pieces({shard.begin, shard.size})) {
          EXPECT_EQ(p.begin, next[p.param]) << c.name;
          EXPECT_EQ(p.offset, layout.offset(p.param) + p.begin) << c.name;
          EXPECT_EQ(layout.bucket_of(p.param), static_cast<int64_t>(b)) << c.name;
          next[p.param] += p.count;
        }
      }
      EXPECT_EQ(end, layout.buckets()[b].begin + layout.buckets()[b].size) << c.name;
    }
    for (uint64_t p = 0; p < model.get().num_params; ++p) {
      const YokeParameter& param = *model.get().params[p];
      EXPECT_EQ(next[p], numel(param.shape, param.ndim)) << c.name << " " << param.name.data;
    }
  }
}

TEST(BucketSize, IsMegatronsDefaultOrThatOfTheNumberOfBuckets) {
  const LlamaSummary model(Dims{});
  Settings settings;
  EXPECT_EQ(bucket_rules(model.get(), settings, 1, 2, true).bucket_size, 0);
  settings.overlap_grad_reduce = true;
  EXPECT_EQ(bucket_rules(model.get(), settings, 1, 2, true).bucket_size, 40'000'000);
  EXPECT_EQ(bucket_rules(model.get(), settings, 1, 64, true).bucket_size, 64'000'000);
  settings.num_buckets = 4;
  EXPECT_EQ(bucket_rules(model.get(), settings, 1, 2, true).bucket_size, 254'272 / 4);
}

// In the order of the buffer the first parameters are the output layer and the last norm.
TEST(Buckets, EndWithTheParameterThatFillsThemExactly) {
  const LlamaSummary model(Dims{});
  const int64_t output = Dims{}.vocab * Dims{}.dim, norm = Dims{}.dim;
  EXPECT_EQ(Layout::of(model.get(), {.bucket_size = output}).buckets()[0].size, output);
  EXPECT_EQ(Layout::of(model.get(), {.bucket_size = output + 1}).buckets()[0].size, output + norm);
}

TEST(Slots, OfUnknownModelsAreTheirParametersInOrder) {
  Dims dims;
  dims.layers = 1;
  const LlamaSummary llama(dims);
  std::vector<YokeParameter> params;
  for (const char* name : {"embed", "layers.0.w", "model.layers.0.other", "model.layers."}) {
    params.push_back(*llama.get().params[0]);
    params.back().name = view(std::string_view(name));
  }
  std::vector<const YokeParameter*> pointers;
  for (const YokeParameter& p : params) pointers.push_back(&p);
  YokeModelSummary model = llama.get();
  model.params = pointers.data();
  model.num_params = pointers.size();
  const std::vector<Slot> slots = megatron_slots(model);
  ASSERT_EQ(slots.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(slots[i].name, view(params[i].name));
    EXPECT_EQ(slots[i].params, std::vector<int64_t>{static_cast<int64_t>(i)});
  }
}

}  // namespace
}  // namespace yoke::megatron_compat::testing
