// Tests yoke/comm.hpp: collectives with swapped arguments do not compile, and a Work waits once.
#include "yoke/comm.hpp"

#include <gtest/gtest.h>

#include <array>
#include <type_traits>
#include <utility>

namespace yoke {
namespace {

// ---- Swapped arguments do not compile ----

template <class Out, class In>
concept CanAllGather = requires(const Comm& comm, Out out, In in) {
  comm.all_gather(out, in);
};
template <class Out, class In>
concept CanReduceScatter = requires(const Comm& comm, Out out, In in) {
  comm.reduce_scatter(out, in);
};

static_assert(CanAllGather<Span, ConstSpan> && CanReduceScatter<Span, ConstSpan>);
static_assert(!CanAllGather<ConstSpan, Span> && !CanReduceScatter<ConstSpan, Span>);
static_assert(!CanAllGather<ConstSpan, ConstSpan> && !CanReduceScatter<ConstSpan, ConstSpan>);
// With two writable spans it would be unknown which one is the input.
static_assert(!CanAllGather<Span, Span> && !CanReduceScatter<Span, Span>);

static_assert(std::is_convertible_v<Span, ConstSpan>);
static_assert(!std::is_convertible_v<ConstSpan, Span>);
static_assert(!std::is_constructible_v<Span, ConstSpan>);

TEST(Comm, OfOneRankCopiesTheInputIntoTheOutput) {
  const std::array<double, 2> in{1, 2};
  std::array<double, 2> gathered{}, scattered{};
  const Comm comm;
  comm.all_gather({gathered.data(), 2, YOKE_F64}, ConstSpan(in.data(), 2, YOKE_F64)).wait();
  comm.reduce_scatter({scattered.data(), 2, YOKE_F64}, ConstSpan(in.data(), 2, YOKE_F64)).wait();
  EXPECT_EQ(gathered, in);
  EXPECT_EQ(scattered, in);
}

// ---- Work ----

int waits = 0;
int32_t count_wait(YokeWork*, YokeError*) {
  ++waits;
  return YOKE_OK;
}

class WorkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    waits = 0;
    service_.wait = count_wait;
  }
  Work issued() { return {&service_, reinterpret_cast<YokeWork*>(&handle_)}; }

 private:
  YokeCollectives service_{};
  int handle_ = 0;
};

TEST_F(WorkTest, IsWaitedForOnceByItsDestructorOrByHand) {
  { const Work dropped = issued(); }
  EXPECT_EQ(waits, 1) << "the destructor waits";
  {
    Work waited = issued();
    waited.wait();
    waited.wait();
  }
  EXPECT_EQ(waits, 2) << "and only if nobody has waited";
}

TEST_F(WorkTest, MovesWithItsDutyToWait) {
  {
    Work first = issued();
    const Work second = std::move(first);
    EXPECT_EQ(waits, 0);
  }
  EXPECT_EQ(waits, 1);
}

}  // namespace
}  // namespace yoke
