// Compares the memory that ptd forecasts with the memory that a step takes: the largest number of
// bytes that live on a rank in LibTorch's allocations.
//
//   build/release/bench/memory_forecast
#include <cmath>
#include <cstdio>

#include "tests/unit/ptd/counted_step.hpp"

namespace yoke::ptd::testing {
namespace {

constexpr char kQwen3[] = R"({"model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 4,
  "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 10, "intermediate_size": 200,
  "vocab_size": 1000, "hidden_act": "silu", "max_position_embeddings": 128})";
constexpr char kGpt2[] = R"({"model_type": "gpt2", "n_embd": 64, "n_layer": 4, "n_head": 8,
  "vocab_size": 1000, "n_positions": 128, "embd_pdrop": 0, "resid_pdrop": 0, "attn_pdrop": 0})";
constexpr char kOddGpt2[] = R"({"model_type": "gpt2", "n_embd": 64, "n_layer": 4, "n_head": 8,
  "vocab_size": 1001, "n_positions": 128, "embd_pdrop": 0, "resid_pdrop": 0, "attn_pdrop": 0})";

const CountedLayout kLayouts[] = {
    {.name = "one rank"},
    {.name = "one rank, 4 sequences", .micros = 2, .sequences = 4},
    {.name = "one rank, recompute", .sequences = 4, .options = {{"activation_checkpoint", "full"}}},
    {.name = "one rank, bf16", .sequences = 4, .dtype = YOKE_BF16},
    {.name = "fsdp 2", .shards = 2, .sequences = 4},
    {.name = "fsdp 2, whole", .shards = 2, .options = {{"reshard_after_forward", "false"}}},
    {.name = "fsdp 2, unsharded", .shards = 2, .options = {{"accumulate", "unsharded"}}},
    {.name = "fsdp 2, bf16", .shards = 2, .sequences = 2, .dtype = YOKE_BF16},
    {.name = "gpipe 2", .pp = 2, .options = {{"pp_schedule", "gpipe"}}},
    {.name = "1f1b 2", .pp = 2, .sequences = 2},
    {.name = "1f1b 4", .pp = 4, .sequences = 2},
    {.name = "1f1b 4, recompute",
     .pp = 4,
     .sequences = 4,
     .options = {{"activation_checkpoint", "full"}}},
    {.name = "gpipe 2, stages",
     .pp = 2,
     .sequences = 4,
     .options = {{"pp_schedule", "gpipe"}, {"activation_checkpoint", "stage"}}},
    {.name = "interleaved 2", .pp = 2, .options = {{"pp_schedule", "interleaved"}}},
    {.name = "looped_bfs 2", .pp = 2, .options = {{"pp_schedule", "looped_bfs"}}},
    {.name = "zb_h1 2", .pp = 2, .sequences = 2, .options = {{"pp_schedule", "zb_h1"}}},
    {.name = "zb_v 2", .pp = 2, .options = {{"pp_schedule", "zb_v"}}},
    {.name = "v_min 2", .pp = 2, .options = {{"pp_schedule", "v_min"}}},
    {.name = "1f1b 2, fsdp 2", .pp = 2, .shards = 2, .sequences = 2},
    {.name = "interleaved 2, fsdp 2, 1 whole",
     .pp = 2,
     .shards = 2,
     .options = {{"pp_schedule", "interleaved"}, {"pp_whole", "1"}}},
    {.name = "cp 2", .cp = 2, .sequences = 4},
    {.name = "cp 2, gathered",
     .cp = 2,
     .sequences = 4,
     .options = {{"cp_attention", "all_gather"}}},
    {.name = "cp 2, replicated", .cp = 2, .options = {{"shard_over_cp", "false"}}},
    {.name = "cp 2, bf16", .cp = 2, .sequences = 4, .dtype = YOKE_BF16},
    {.name = "cp 2, recompute",
     .cp = 2,
     .sequences = 4,
     .options = {{"activation_checkpoint", "full"}}},
    {.name = "tp 2", .tp = 2, .sequences = 4},
    {.name = "tp 4", .tp = 4, .sequences = 4},
    {.name = "tp 2, 1 sequence", .tp = 2},
    {.name = "tp 2, bf16", .tp = 2, .sequences = 4, .dtype = YOKE_BF16},
    {.name = "tp 2, whole rows",
     .tp = 2,
     .sequences = 4,
     .options = {{"sequence_parallel", "false"}}},
    {.name = "tp 2, whole logits",
     .tp = 2,
     .sequences = 4,
     .options = {{"loss_parallel", "false"}}},
    {.name = "tp 2, recompute",
     .tp = 2,
     .sequences = 4,
     .options = {{"activation_checkpoint", "full"}}},
    {.name = "tp 2, halves", .tp = 2, .sequences = 4, .blocks = "half"},
    {.name = "tp 2, fsdp 2", .shards = 2, .tp = 2, .sequences = 4},
    {.name = "tp 2, cp 2", .cp = 2, .tp = 2, .sequences = 4},
    {.name = "tp 2, 1f1b 2", .pp = 2, .tp = 2, .sequences = 4},
    {.name = "tp 2, zb_h1 2",
     .pp = 2,
     .tp = 2,
     .sequences = 4,
     .options = {{"pp_schedule", "zb_h1"}}},
    {.name = "tp 2, cp 2, 1f1b 2, fsdp 2", .pp = 2, .shards = 2, .cp = 2, .tp = 2, .sequences = 2},
    {.name = "Qwen3, cp 2", .cp = 2, .sequences = 4, .model = kQwen3},
    {.name = "Qwen3, tp 2", .tp = 2, .sequences = 4, .model = kQwen3},
    {.name = "GPT-2, cp 2", .cp = 2, .sequences = 4, .model = kGpt2},
    {.name = "GPT-2, tp 2", .tp = 2, .sequences = 4, .model = kGpt2},
    {.name = "GPT-2, tp 2, odd vocabulary", .tp = 2, .sequences = 4, .model = kOddGpt2},
    {.name = "GPT-2, tp 2, bf16", .tp = 2, .sequences = 4, .dtype = YOKE_BF16, .model = kGpt2},
};

}  // namespace

int run() {
  const CountedAllocations counting;
  double worst = 1;
  for (const CountedLayout& layout : kLayouts) {
    const std::vector<CountedPeak> peaks = peaks_of(layout);
    for (int pp = 0; pp < layout.pp; ++pp) {
      const CountedPeak& peak = peaks[pp * layout.ranks_of_stage()];
      if (std::abs(peak.ratio() - 1) > std::abs(worst - 1)) worst = peak.ratio();
      std::printf("%-32s pp %d  forecast %8.1f KiB  counted %8.1f KiB  ratio %.4f  kept %.4f\n",
                  layout.name,
                  pp,
                  static_cast<double>(peak.forecast) / 1024,
                  static_cast<double>(peak.counted) / 1024,
                  peak.ratio(),
                  peak.kept.ratio());
    }
  }
  std::printf("worst ratio %.4f\n", worst);
  return 0;
}

}  // namespace yoke::ptd::testing

int main() {
  return yoke::ptd::testing::run();
}
