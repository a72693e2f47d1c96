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

TEST(Comm, OfOneRankSendsPartsToItself) {
  const std::array<double, 2> in{1, 2};
  std::array<double, 2> parts{}, shifted{};
  const Comm comm;
  const std::array<int64_t, 1> counts{2};
  const ConstSpan from(in.data(), 2, YOKE_F64);
  comm.all_to_all({parts.data(), 2, YOKE_F64}, counts.data(), from, counts.data()).wait();
  comm.shift({shifted.data(), 2, YOKE_F64}, from).wait();
  EXPECT_EQ(parts, in);
  EXPECT_EQ(shifted, in);
  const auto code_of = [](auto&& f) {
    try {
      f();
    } catch (const Error& e) {
      return e.code();
    }
    return int32_t{YOKE_OK};
  };
  EXPECT_EQ(code_of([&] {
              comm.shift({shifted.data(), 1, YOKE_F64}, from).wait();
            }),
            YOKE_INVALID_ARGUMENT);
  EXPECT_EQ(code_of([&] { comm.send(from, 0).wait(); }), YOKE_FAILED_PRECONDITION);
  EXPECT_EQ(code_of([&] {
              comm.recv({parts.data(), 2, YOKE_F64}, 0).wait();
            }),
            YOKE_FAILED_PRECONDITION);
}

// A host of version 1.0 has a table that ends before `send`.
TEST(Comm, OfAnOldHostRefusesMessages) {
  static YokeCollectives table{};
  table.header = YOKE_HEADER(YokeCollectives, YOKE_ID_COLLECTIVES);
  table.header.struct_size = offsetof(YokeCollectives, send);
  table.comm = [](void*, uint32_t, const char*, YokeComm**, YokeError*) {
    return int32_t{YOKE_OK};
  };
  table.size = [](const YokeComm*) { return int32_t{2}; };
  table.rank = [](const YokeComm*) { return int32_t{0}; };
  YokeHost host{};
  host.world_size = 2;
  host.device = {YOKE_DEVICE_CPU, 0};
  host.get_service = [](void*, const char*, uint64_t size) -> const YokeHeader* {
    return size <= table.header.struct_size ? &table.header : nullptr;
  };
  const Comm comm(host, YOKE_ALL_AXES, "test");
  double value = 0;
  const Span span{&value, 1, YOKE_F64};
  const auto text_of = [](auto&& f) -> std::string {
    try {
      f();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), YOKE_UNIMPLEMENTED);
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(text_of([&] { comm.send(span, 1).wait(); }),
            "this host has no YokeCollectives.send, which came with version 1.1 of the contract; "
            "update the host");
  EXPECT_NE(text_of([&] { comm.recv(span, 1).wait(); }), "");
  EXPECT_NE(text_of([&] { comm.all_to_all(span, nullptr, span, nullptr).wait(); }), "");
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
