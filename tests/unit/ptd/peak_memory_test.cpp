// Compares the forecast of the peak of a step with counted allocations. bench/memory_forecast does
// that in more layouts.
#include <gtest/gtest.h>

#include "tests/unit/ptd/counted_step.hpp"
#include "yoke/text.hpp"

namespace yoke::ptd::testing {
namespace {

// Not forecast: the angles of rotary positions, and one or two numbers for each token and head.
constexpr double kTolerance = 0.02;

TEST(PeakMemory, IsThatOfTheForecast) {
  const CountedLayout layouts[] = {
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
  };
  const CountedAllocations counting;
  for (const CountedLayout& layout : layouts) {
    const std::vector<CountedPeak> peaks = peaks_of(layout);
    for (size_t rank = 0; rank < peaks.size(); ++rank) {
      SCOPED_TRACE(concat(layout.name, ", rank ", rank));
      EXPECT_NEAR(peaks[rank].ratio(), 1, kTolerance);
    }
  }
}

}  // namespace
}  // namespace yoke::ptd::testing
