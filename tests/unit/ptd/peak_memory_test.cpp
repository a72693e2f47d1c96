// Compares the forecast of the peak of a step, and of what forwards keep for their backwards, with
// counted allocations. bench/memory_forecast does that in more layouts.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "tests/unit/ptd/counted_step.hpp"
#include "yoke/text.hpp"

namespace yoke::ptd::testing {
namespace {

// Not forecast: the angles of rotary positions, and one or two numbers for each token and head.
constexpr double kTolerance = 0.02;

// A layer with heads that are wider together than the residual stream, which a forecast could
// otherwise confuse, and norms of heads.
constexpr char kQwen3[] = R"({"model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 3,
  "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 10, "intermediate_size": 200,
  "vocab_size": 1000, "hidden_act": "silu", "max_position_embeddings": 64})";
constexpr char kGpt2[] = R"({"model_type": "gpt2", "n_embd": 64, "n_layer": 3, "n_head": 8,
  "vocab_size": 1000, "n_positions": 64, "embd_pdrop": 0, "resid_pdrop": 0, "attn_pdrop": 0})";
// A vocabulary that tp does not cut.
constexpr char kOddGpt2[] = R"({"model_type": "gpt2", "n_embd": 64, "n_layer": 3, "n_head": 8,
  "vocab_size": 1001, "n_positions": 64, "embd_pdrop": 0, "resid_pdrop": 0, "attn_pdrop": 0})";

// Returns the bytes that a peak may take beyond its forecast. On a CPU without AVX-512, a product
// in bf16 converts its matrices to fp32, and the largest product of `tiny` is that of its head.
int64_t not_forecast(const CountedLayout& layout) {
  if (layout.dtype != YOKE_BF16) return 0;
  constexpr int64_t kHidden = 64, kVocabulary = 1024, kSequence = 64;
  const int64_t tokens = layout.sequences * kSequence;
  return 4 * (tokens * kHidden + kHidden * kVocabulary + tokens * kVocabulary);
}

void expect_peak(const CountedPeak& peak, int64_t not_forecast) {
  const auto forecast = static_cast<double>(peak.forecast);
  const auto counted = static_cast<double>(peak.counted);
  EXPECT_GE(counted, forecast * (1 - kTolerance));
  EXPECT_LE(counted - static_cast<double>(not_forecast), forecast * (1 + kTolerance));
}

void expect_forecasts(const std::vector<CountedLayout>& layouts) {
  const CountedAllocations counting;
  for (const CountedLayout& layout : layouts) {
    const std::vector<CountedPeak> peaks = peaks_of(layout);
    for (size_t rank = 0; rank < peaks.size(); ++rank) {
      SCOPED_TRACE(concat(layout.name, ", rank ", rank));
      expect_peak(peaks[rank], not_forecast(layout));
      // Forwards that are computed again keep less the first time.
      if (layout.options.count("activation_checkpoint") > 0) continue;
      EXPECT_NEAR(peaks[rank].kept.ratio(), 1, kTolerance) << "kept";
    }
  }
}

TEST(PeakMemory, IsThatOfTheForecast) {
  expect_forecasts({
      {.name = "one rank", .micros = 2, .sequences = 4},
      {.name = "recompute",
       .micros = 2,
       .sequences = 4,
       .options = {{"activation_checkpoint", "full"}}},
      {.name = "bf16, sharded", .shards = 2, .micros = 3, .sequences = 2, .dtype = YOKE_BF16},
      {.name = "bf16, gathered in fp8",
       .shards = 2,
       .micros = 3,
       .sequences = 2,
       .dtype = YOKE_BF16,
       .options = {{"fp8_gather", "true"}, {"unit_bytes", "1"}}},
      {.name = "sharded", .shards = 2, .micros = 3, .sequences = 4},
      {.name = "1f1b", .pp = 2, .micros = 4, .sequences = 2},
      {.name = "zero bubble", .pp = 2, .micros = 4, .options = {{"pp_schedule", "zb_h1"}}},
      {.name = "interleaved, sharded",
       .pp = 2,
       .shards = 2,
       .micros = 4,
       .options = {{"pp_schedule", "interleaved"}, {"pp_whole", "1"}}},
  });
}

TEST(PeakMemory, IsThatOfTheForecastWithContextParallelism) {
  expect_forecasts({
      {.name = "fp32", .cp = 2, .micros = 2, .sequences = 4},
      {.name = "all keys at once",
       .cp = 2,
       .micros = 2,
       .sequences = 4,
       .options = {{"cp_attention", "all_gather"}}},
      {.name = "bf16", .cp = 2, .micros = 2, .sequences = 4, .dtype = YOKE_BF16},
      {.name = "replicated", .cp = 2, .micros = 2, .options = {{"shard_over_cp", "false"}}},
      {.name = "Qwen3", .cp = 2, .micros = 2, .sequences = 4, .model = kQwen3},
      {.name = "GPT-2", .cp = 2, .micros = 2, .sequences = 4, .model = kGpt2},
  });
}

TEST(PeakMemory, IsThatOfTheForecastWithTensorParallelism) {
  expect_forecasts({
      {.name = "fp32", .tp = 2, .micros = 2, .sequences = 4},
      {.name = "4 ranks", .tp = 4, .micros = 2, .sequences = 4},
      {.name = "bf16", .tp = 2, .micros = 2, .sequences = 4, .dtype = YOKE_BF16},
      {.name = "whole rows",
       .tp = 2,
       .micros = 2,
       .sequences = 4,
       .options = {{"sequence_parallel", "false"}}},
      {.name = "whole logits",
       .tp = 2,
       .micros = 2,
       .sequences = 4,
       .options = {{"loss_parallel", "false"}}},
      {.name = "recompute",
       .tp = 2,
       .micros = 2,
       .sequences = 4,
       .options = {{"activation_checkpoint", "full"}}},
      {.name = "2 pieces", .tp = 2, .micros = 2, .sequences = 4, .options = {{"tp_pieces", "2"}}},
      {.name = "8 pieces", .tp = 4, .micros = 2, .sequences = 4, .options = {{"tp_pieces", "8"}}},
      {.name = "half blocks", .tp = 2, .micros = 2, .sequences = 4, .blocks = "half"},
      {.name = "Qwen3", .tp = 2, .micros = 2, .sequences = 4, .model = kQwen3},
      {.name = "GPT-2", .tp = 2, .micros = 2, .sequences = 4, .model = kGpt2},
  });
}

// What forwards keep is not compared: the first one also frees what the backward has gathered last.
TEST(PeakMemory, IsThatOfTheForecastWithAVocabularyThatIsNotCut) {
  const CountedAllocations counting;
  const auto peaks =
      peaks_of({.name = "", .tp = 2, .micros = 2, .sequences = 4, .model = kOddGpt2});
  for (const CountedPeak& peak : peaks) EXPECT_NEAR(peak.ratio(), 1, kTolerance);
}

// With fp8 products, the temporary memory of a pass is unknown, so only what the forwards keep is
// compared. With `tensorwise`, both products with a weight use the same numbers on a CPU, which is
// half of what the forecast allows for.
TEST(PeakMemory, OfProductsInFp8IsForecastInTheForwards) {
  constexpr int kMicros = 2;
  const CountedAllocations counting;
  for (const char* recipe : {"tensorwise", "rowwise", "rowwise_gw_hp"}) {
    for (const auto& [cp, tp] : {std::pair(1, 1), {2, 1}, {1, 2}}) {
      const auto peaks = peaks_of({.name = "",
                                   .cp = cp,
                                   .tp = tp,
                                   .micros = kMicros,
                                   .sequences = 4,
                                   .dtype = YOKE_BF16,
                                   .fp8_recipe = recipe});
      for (const CountedPeak& peak : peaks) {
        EXPECT_EQ(peak.roundings > 0, cp * tp == 1);
        const auto roundings = peak.roundings / (recipe == std::string("tensorwise") ? 2 : 1);
        const auto forecast = static_cast<double>(peak.kept.forecast + roundings / kMicros);
        EXPECT_NEAR(forecast / static_cast<double>(peak.kept.counted), 1, kTolerance)
            << recipe << ", cp " << cp << ", tp " << tp;
      }
    }
  }
}

TEST(PeakMemory, IsThatOfTheForecastWithSeveralAxes) {
  expect_forecasts({
      {.name = "tp, sharded", .shards = 2, .tp = 2, .micros = 2, .sequences = 4},
      {.name = "tp, cp", .cp = 2, .tp = 2, .micros = 2, .sequences = 4},
      {.name = "tp, cp, 1f1b", .pp = 2, .cp = 2, .tp = 2, .micros = 4, .sequences = 2},
  });
}

}  // namespace
}  // namespace yoke::ptd::testing
