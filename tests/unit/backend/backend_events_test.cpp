#include "core/backend/backend_events.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "yoke/error.hpp"

namespace yoke {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

template <class F>
int32_t code_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.code();
  }
  return YOKE_OK;
}

TEST(BackendEvents, StoresSpansOnlyWhileRecording) {
  BackendEvents events;
  events.span("before", 1, 2);
  events.record(true);
  events.span("a", 3, 4);
  events.span("b", 4, 4);
  events.record(false);
  events.span("after", 5, 6);
  const auto spans = events.take_spans();
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].name, "a");
  EXPECT_EQ(spans[0].begin, 3);
  EXPECT_EQ(spans[0].end, 4);
  EXPECT_EQ(spans[0].thread, ::gettid());
  EXPECT_TRUE(events.take_spans().empty());
}

TEST(BackendEvents, KeepsTheLastValueOfAMetricUntilItIsTaken) {
  BackendEvents events;
  events.metric("drift", 1);
  events.metric("drift", 2);
  events.metric("scale_2", -0.5);
  EXPECT_THAT(events.take_metrics(), ElementsAre(Pair("drift", 2), Pair("scale_2", -0.5)));
  EXPECT_THAT(events.take_metrics(), ElementsAre());
}

TEST(BackendEvents, RefusesMalformedNamesAndSpans) {
  BackendEvents events;
  events.record(true);
  const std::string longest(63, 'a');
  EXPECT_EQ(code_of([&] { events.span(longest, 1, 2); }), YOKE_OK);
  EXPECT_EQ(code_of([&] { events.span(longest + "a", 1, 2); }), YOKE_INVALID_ARGUMENT);
  EXPECT_EQ(code_of([&] { events.span("", 1, 2); }), YOKE_INVALID_ARGUMENT);
  EXPECT_EQ(code_of([&] { events.span("x", 2, 1); }), YOKE_INVALID_ARGUMENT);
  EXPECT_EQ(code_of([&] { events.metric(longest, 1); }), YOKE_OK);
  for (const std::string& name :
       {std::string(), longest + "a", std::string("Upper"), std::string("a b"), std::string("a.b")})
    EXPECT_EQ(code_of([&] { events.metric(name, 1); }), YOKE_INVALID_ARGUMENT) << name;
  EXPECT_EQ(events.take_dropped(), 0);
}

TEST(BackendEvents, DropsAndCountsWhatIsTooMuch) {
  BackendEvents events;
  events.record(true);
  for (size_t i = 0; i < BackendEvents::kMaxSpans; ++i) events.span("s", 1, 2);
  EXPECT_EQ(code_of([&] { events.span("s", 1, 2); }), YOKE_RESOURCE_EXHAUSTED);
  for (size_t i = 0; i < BackendEvents::kMaxMetrics; ++i) events.metric("m" + std::to_string(i), 1);
  EXPECT_EQ(code_of([&] { events.metric("one_more", 1); }), YOKE_RESOURCE_EXHAUSTED);
  EXPECT_EQ(code_of([&] { events.metric("m0", 2); }), YOKE_OK) << "a known name";
  EXPECT_EQ(events.take_dropped(), 2);
  EXPECT_EQ(events.take_dropped(), 0);
  EXPECT_EQ(events.take_spans().size(), BackendEvents::kMaxSpans);
  EXPECT_EQ(code_of([&] { events.span("s", 1, 2); }), YOKE_OK) << "there is room again";
}

TEST(BackendEvents, TakesEventsFromManyThreadsAtOnce) {
  BackendEvents events;
  events.record(true);
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&events, t] {
      for (int i = 0; i < 1000; ++i) {
        const int64_t begin = BackendEvents::now();
        events.span("s", begin, BackendEvents::now());
        events.metric("m" + std::to_string(t), i);
      }
    });
  }
  size_t spans = 0;
  for (int i = 0; i < 100; ++i) spans += events.take_spans().size();
  for (std::thread& thread : threads) thread.join();
  spans += events.take_spans().size();
  EXPECT_EQ(spans, 8000u);
}

}  // namespace
}  // namespace yoke
