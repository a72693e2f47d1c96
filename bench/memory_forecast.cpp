// Compares the memory that ptd forecasts with the memory that a step takes: the largest number of
// bytes that live on a rank in LibTorch's allocations.
//
//   build/release/bench/memory_forecast
#include <cmath>
#include <cstdio>

#include "tests/unit/ptd/counted_step.hpp"

namespace yoke::ptd::testing {
namespace {

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
};

}  // namespace

int run() {
  const CountedAllocations counting;
  double worst = 1;
  for (const CountedLayout& layout : kLayouts) {
    const std::vector<CountedPeak> peaks = peaks_of(layout);
    for (int pp = 0; pp < layout.pp; ++pp) {
      const CountedPeak& peak = peaks[pp * layout.shards];
      if (std::abs(peak.ratio() - 1) > std::abs(worst - 1)) worst = peak.ratio();
      std::printf("%-32s pp %d  forecast %8.1f KiB  counted %8.1f KiB  ratio %.4f\n",
                  layout.name,
                  pp,
                  static_cast<double>(peak.forecast) / 1024,
                  static_cast<double>(peak.counted) / 1024,
                  peak.ratio());
    }
  }
  std::printf("worst ratio %.4f\n", worst);
  return 0;
}

}  // namespace yoke::ptd::testing

int main() {
  return yoke::ptd::testing::run();
}
