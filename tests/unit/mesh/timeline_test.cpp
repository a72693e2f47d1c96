// Checks the figures of the table of schedules in plugins/ptd/README.md.
#include "sdk/mesh/schedule/timeline.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/mesh/chain_pipeline.hpp"

namespace yoke::mesh {
namespace {

using testing::Case;
using testing::chain;
using testing::lists_of;

// Times of one micro-batch on a whole rank.
struct Times {
  double forward, input, weight;
};

// Returns the idle time of the step, the same for all ranks, which have equal work.
double idle_of(const Case& c, const Times& t) {
  const std::vector<StepSpec> specs = chain(c);
  const auto lists = lists_of(specs);
  const Timeline timeline = timeline_of(lists, [&](int, const Action& a) {
    switch (a.kind) {
      case ActionKind::kForward:
        return t.forward / c.chunks;
      case ActionKind::kBackwardInput:
        return t.input / c.chunks;
      case ActionKind::kBackwardWeight:
        return t.weight / c.chunks;
      default:
        return (t.input + t.weight) / c.chunks;
    }
  });
  const std::vector<double> idle = idle_times(timeline, lists);
  for (const double i : idle) EXPECT_NEAR(i, idle[0], 1e-9) << c.text();
  return idle[0];
}

TEST(Timeline, IdleTimesAreThoseOfTheTable) {
  for (const Times& t : {Times{1, 1, 1}, Times{1, 1.25, 0.875}}) {
    for (const int p : {2, 4, 8}) {
      for (const int v : {2, 4}) {
        const int m = 4 * p;
        const double ends = (p - 1) * (t.forward + t.input);
        const double filled = (p - 1) * (t.forward + t.input - t.weight);
        EXPECT_NEAR(idle_of({PipelineKind::kGpipe, p, 1, m}, t), ends, 1e-9);
        EXPECT_NEAR(idle_of({PipelineKind::k1F1B, p, 1, m}, t), ends, 1e-9);
        EXPECT_NEAR(idle_of({PipelineKind::kInterleaved, p, v, m}, t), ends / v, 1e-9) << p << v;
        EXPECT_NEAR(idle_of({PipelineKind::kLoopedBfs, p, v, m}, t), ends / v, 1e-9) << p << v;
        EXPECT_NEAR(idle_of({PipelineKind::kZbH1, p, 1, m}, t), filled, 1e-9);
        EXPECT_NEAR(idle_of({PipelineKind::kZbInterleaved, p, v, m}, t), filled / v, 1e-9)
            << p << v;
      }
    }
  }
}

TEST(Timeline, OfSchedulesOverAVee) {
  const Times equal{1, 1, 1};
  for (const int p : {2, 4, 8}) {
    const int m = 4 * p;
    EXPECT_NEAR(idle_of({PipelineKind::kZbV, p, 2, m}, equal), (p - 1) / 2.0, 1e-9);
    EXPECT_NEAR(idle_of({PipelineKind::kDualPipeV, p, 2, m}, equal), (p - 1) / 2.0, 1e-9);
    EXPECT_GT(idle_of({PipelineKind::kVHalf, p, 2, m}, equal), (p - 1) / 2.0);
    EXPECT_GT(idle_of({PipelineKind::kVMin, p, 2, m}, equal), (p - 1) / 2.0);
  }
}

// Two ranks with one micro-batch: each message is on the way between two computations.
TEST(Timeline, AMessageTakesItsTime) {
  const auto lists = lists_of(chain({PipelineKind::k1F1B, 2, 1, 1}));
  const auto one = [](int, const Action&) { return 1.0; };
  EXPECT_NEAR(timeline_of(lists, one).end, 4, 1e-9);       // two forwards, two backwards
  EXPECT_NEAR(timeline_of(lists, one, 0.5).end, 5, 1e-9);  // one message each way
}

}  // namespace
}  // namespace yoke::mesh
