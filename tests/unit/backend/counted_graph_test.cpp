#include "core/backend/counted_graph.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "tests/support/virtual_ranks.hpp"
#include "yoke/error.hpp"

namespace yoke {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct LoggingGraph final : DeviceGraph {
  explicit LoggingGraph(std::vector<std::string>& its_log) : log(its_log) {}
  void begin() override { log.push_back("begin"); }
  void end() override { log.push_back("end"); }
  void replay() override { log.push_back("replay"); }
  std::vector<std::string>& log;
};

// Sums 8 numbers over two ranks. On a device this would only be recorded.
void sum(World& world) {
  world.comm(YOKE_ALL_AXES, "test").all_reduce(at::ones({8}), YOKE_SUM)->wait();
}

std::unique_ptr<CountedGraph> recorded(World& world, std::vector<std::string>& log) {
  auto graph = std::make_unique<CountedGraph>(std::make_unique<LoggingGraph>(log), world);
  graph->begin();
  sum(world);
  graph->end();
  return graph;
}

CommCount total(const World& world) {
  CommCount sum;
  for (const auto& [axes, count] : world.counts()) {
    sum.calls += count.calls;
    sum.bytes += count.bytes;
  }
  return sum;
}

TEST(CountedGraph, EachReplayCountsLikeTheRecordedWork) {
  test::orderly_virtual_ranks(2, {}, [](World& world) {
    world.set_mesh(Mesh({1, 1, 2, 1, 1}));
    std::vector<std::string> log;
    const auto graph = recorded(world, log);
    for (int replays = 1; replays <= 3; ++replays) {
      graph->replay();
      EXPECT_EQ(total(world).calls, replays);
      EXPECT_EQ(total(world).bytes, replays * 32);
    }
    EXPECT_THAT(log, ElementsAre("begin", "end", "replay", "replay", "replay"));
    world.check_collectives();
    // What is issued outside of a recording is not counted by its replays.
    sum(world);
    graph->replay();
    EXPECT_EQ(total(world).calls, 5);
    const auto latest = world.latest_collectives().begin()->second;
    EXPECT_THAT(latest.back(), HasSubstr("all_reduce (sum) of 8 x fp32 as collective 5"));
  });
}

TEST(CountedGraph, AReplayOnOneRankOnlyIsNoticed) {
  test::orderly_virtual_ranks(2, {}, [](World& world) {
    world.set_mesh(Mesh({1, 1, 2, 1, 1}));
    std::vector<std::string> log;
    const auto graph = recorded(world, log);
    graph->replay();
    world.check_collectives();
    if (world.rank() == 0) graph->replay();
    try {
      world.check_collectives();
      ADD_FAILURE() << "not noticed";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), YOKE_FAILED_PRECONDITION);
      EXPECT_THAT(e.what(), HasSubstr("all_reduce"));
    }
  });
}

TEST(CountedGraph, ARecordingThatFailsIsForgotten) {
  test::orderly_virtual_ranks(2, {}, [](World& world) {
    world.set_mesh(Mesh({1, 1, 2, 1, 1}));
    std::vector<std::string> log;
    {
      CountedGraph graph(std::make_unique<LoggingGraph>(log), world);
      graph.begin();
      sum(world);
    }
    sum(world);  // belongs to no recording
    EXPECT_THROW(world.end_recording(), std::exception);
    recorded(world, log)->replay();
    EXPECT_EQ(total(world).calls, 3);
    EXPECT_THAT(log, ElementsAre("begin", "begin", "end", "replay"));
  });
}

}  // namespace
}  // namespace yoke
