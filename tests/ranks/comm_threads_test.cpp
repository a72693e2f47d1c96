// Tests communicators between threads of this process.
#include <atomic>
#include <chrono>
#include <thread>

#include "core/comm/thread_backend.hpp"
#include "core/comm/virtual_world.hpp"
#include "tests/ranks/local_programs.hpp"
#include "tests/ranks/message_programs.hpp"
#include "tests/support/virtual_ranks.hpp"

namespace yoke::test {
namespace {

CommOptions with(CommCheck check) {
  CommOptions options;
  options.check = check;
  return options;
}

struct Case {
  Mesh::Degrees degrees;
  uint32_t seed;
};

class ThreadRanks : public ::testing::TestWithParam<Case> {};

TEST_P(ThreadRanks, GiveNaiveSumsOnAnyAxesInAnyOrderOfCommunicators) {
  const Mesh mesh(GetParam().degrees);
  orderly_virtual_ranks(mesh.size(), with(CommCheck::kStep), [&](World& world) {
    run_random_program(world, mesh, GetParam().seed, 60, false);
  });
}

INSTANTIATE_TEST_SUITE_P(Meshes,
                         ThreadRanks,
                         ::testing::Values(Case{{1, 1, 1, 1, 1}, 1},
                                           Case{{1, 1, 2, 1, 1}, 2},
                                           Case{{1, 1, 3, 1, 1}, 3},
                                           Case{{1, 2, 2, 1, 1}, 4},
                                           Case{{1, 1, 2, 1, 2}, 5},
                                           Case{{2, 1, 2, 1, 2}, 6},
                                           Case{{1, 2, 1, 2, 2}, 7}));

TEST(ThreadRanksWithFullCheck, GiveNaiveSums) {
  const Mesh mesh({1, 1, 2, 1, 2});
  orderly_virtual_ranks(4, with(CommCheck::kFull), [&](World& world) {
    run_random_program(world, mesh, 11, 20, true);
  });
}

TEST(ThreadRanks, SumInRankOrderWithTheSameBitsOnEveryRank) {
  orderly_virtual_ranks(4, {}, sum_in_rank_order);
}

TEST(ThreadRanks, MayScatterAndGatherInPlace) {
  orderly_virtual_ranks(3, {}, scatter_and_gather_in_place);
}

TEST(ThreadRanks, GatherInAnyShape) {
  orderly_virtual_ranks(3, {}, gather_in_any_shape);
}

class ThreadRanksThatDisagree : public ::testing::TestWithParam<std::tuple<int, CommCheck>> {};

// The ranks share memory, so the transport itself detects the difference, without a separate check.
TEST_P(ThreadRanksThatDisagree, LearnWhoDoesWhat) {
  const auto [ranks, check] = GetParam();
  for (const Disagreement& d : disagreements()) {
    orderly_virtual_ranks(ranks, with(check), [&](World& world) { disagree(world, d); });
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks,
                         ThreadRanksThatDisagree,
                         ::testing::Combine(::testing::Values(2, 3),
                                            ::testing::Values(CommCheck::kOff, CommCheck::kFull)));

TEST(ThreadRanks, ExchangeMessages) {
  for (const CommCheck check : {CommCheck::kOff, CommCheck::kStep, CommCheck::kFull})
    orderly_virtual_ranks(3, with(check), exchange_messages);
}

TEST(ThreadRanks, NoticeThatTheirMessagesDiffer) {
  for (const MessageFault& fault : message_faults())
    orderly_virtual_ranks(3, {}, [&](World& world) { differ_in_messages(world, fault); });
  orderly_virtual_ranks(3, {}, send_to_another_rank);
}

// Within a stage the last rank issues one collective more than the other.
TEST(ThreadRanks, OfDifferentStagesMayIssueDifferentCollectives) {
  orderly_virtual_ranks(4, {}, [](World& world) {
    world.set_mesh(Mesh({2, 1, 2, 1, 1}));
    Communicator& comm = world.comm(YOKE_AXIS_BIT(YOKE_DP_SHARD), "reduce");
    for (int i = 0; i <= world.rank() / 2; ++i) comm.all_reduce(floats(4), YOKE_SUM)->wait();
    EXPECT_NO_THROW(world.check_collectives());
    std::unique_ptr<CommWork> work;
    if (world.rank() == 3) work = comm.all_reduce(floats(4), YOKE_SUM);
    EXPECT_EQ(
        thrown_by([&] { world.check_collectives(); }).text,
        "the collectives of dp_shard (reduce) differ: rank 2 has issued 2 collectives, rank 3 "
        "3; rank 3 continued with all_reduce (sum) of 4 x fp32 as collective 3");
  });
}

TEST(ThreadRanks, CompareMessagesBeforeTheyAreReceived) {
  for (const auto& faults : {message_faults(), grave_message_faults()}) {
    for (const MessageFault& fault : faults) {
      if (fault.full_text == nullptr) continue;
      virtual_ranks(
          2, with(CommCheck::kFull), [&](World& world) { compare_messages(world, fault); });
    }
  }
}

TEST(ThreadRanks, AgreeAndExchangeTexts) {
  orderly_virtual_ranks(3, {}, agree_and_exchange_texts);
}

TEST(ThreadRanks, AwaitASlowRankLongerThanTheTimeout) {
  CommOptions options;
  options.timeout = std::chrono::seconds(4);
  orderly_virtual_ranks(3, options, await_a_slow_rank);
}

TEST(ThreadRanks, AwaitNoRankThatLeaves) {
  virtual_ranks(3, {}, await_a_rank_that_leaves);
}

TEST(ThreadRanks, AreReachedThroughAProcessGroup) {
  orderly_virtual_ranks(1, {}, [](World& world) {
    world.set_mesh(Mesh({1, 1, 1, 1, 1}));
    std::vector<at::Tensor> ones{at::ones({3})};
    world.comm(YOKE_ALL_AXES, "self").process_group()->allreduce(ones)->wait();
    EXPECT_EQ(ones[0][2].item<float>(), 1);
    EXPECT_TRUE(world.counts().empty());
  });
  orderly_virtual_ranks(2, {}, use_process_group);
  orderly_virtual_ranks(3, with(CommCheck::kFull), use_process_group);
}

TEST(ThreadRanks, MayGiveEachOtherUnevenParts) {
  orderly_virtual_ranks(2, {}, give_uneven_parts);
}

// ---- Ranks that end without shutdown ----

Communicator& shard_comm(World& world) {
  world.set_mesh(Mesh({1, 1, world.size(), 1, 1}));
  return world.comm(YOKE_AXIS_BIT(YOKE_DP_SHARD), "reduce");
}

TEST(ThreadRanks, LearnThatAPeerLeft) {
  virtual_ranks(3, {}, [](World& world) {
    Communicator& comm = shard_comm(world);
    comm.barrier();
    if (world.rank() == 2) return;
    const Thrown thrown = thrown_by([&] { comm.all_reduce(floats(4), YOKE_SUM)->wait(); });
    EXPECT_EQ(thrown.code, YOKE_UNAVAILABLE);
    EXPECT_EQ(thrown.text.find("a peer of dp_shard was lost"), 0u) << thrown.text;
    EXPECT_NE(thrown.text.find("rank 2 ended before the others"), std::string::npos) << thrown.text;
    EXPECT_EQ(thrown_by([&] { world.from_rank0("x", ""); }).code,
              world.rank() == 0 ? 0 : YOKE_UNAVAILABLE);
  });
}

TEST(ThreadRanks, AreWokenByAnAbortWithItsReason) {
  const auto shared = make_virtual_world(2);
  Rendezvous rendezvous;
  rendezvous.world_size = 2;
  rendezvous.virtual_world = shared;
  std::atomic<bool> waiting{false};
  std::thread aborter([&] {
    while (!waiting) std::this_thread::yield();
    shared->abort("the run was aborted by a test");
  });
  const auto world = World::connect(rendezvous, {});
  ThreadBackend backend(std::make_shared<ThreadHub>(std::vector<int32_t>{0, 1}, false), 0);
  waiting = true;
  const Thrown thrown =
      thrown_by([&] { world->agree("a value that the other rank never sends", "x"); });
  aborter.join();
  EXPECT_EQ(thrown.code, YOKE_UNAVAILABLE);
  EXPECT_EQ(thrown.text, "the run was aborted by a test");
}

TEST(ThreadRanks, EndWaitingWhenCancelled) {
  std::atomic<bool> cancel{false}, over{false};
  CommOptions options;
  options.cancel = &cancel;
  virtual_ranks(2, options, [&](World& world) {
    Communicator& comm = shard_comm(world);
    comm.barrier();
    if (world.rank() == 1) {
      while (!over) std::this_thread::yield();
      // The rank that failed has aborted the communicator.
      EXPECT_EQ(thrown_by([&] { comm.barrier(); }).code, YOKE_UNAVAILABLE);
      return;
    }
    const auto work = comm.all_reduce(floats(4), YOKE_SUM);
    cancel = true;
    const Thrown thrown = thrown_by([&] { work->wait(); });
    over = true;
    EXPECT_EQ(thrown.code, YOKE_CANCELLED);
    EXPECT_NE(thrown.text.find("all_reduce"), std::string::npos) << thrown.text;
  });
}

TEST(ThreadRanks, EndWaitingAfterTheTimeout) {
  std::atomic<bool> over{false};
  virtual_ranks(2, {}, [&](World& world) {
    Communicator& comm = shard_comm(world);
    comm.barrier();
    if (world.rank() == 1) {
      while (!over) std::this_thread::yield();
      return;
    }
    // The short timeout is set only now, because the barrier may take longer on a busy machine.
    comm.process_group()->getDefaultBackend()->setTimeout(std::chrono::milliseconds(150));
    const Thrown thrown = thrown_by([&] { comm.all_reduce(floats(4), YOKE_SUM)->wait(); });
    over = true;
    EXPECT_EQ(thrown.code, YOKE_DEADLINE_EXCEEDED);
    for (const char* part :
         {"all_reduce (sum) of 4 x fp32", "dp_shard", "0.15 s", "comm.timeout"}) {
      EXPECT_NE(thrown.text.find(part), std::string::npos) << thrown.text;
    }
  });
}

TEST(ThreadRanks, PassAFailureToAFuture) {
  virtual_ranks(2, {}, [](World& world) {
    Communicator& comm = shard_comm(world);
    comm.barrier();
    if (world.rank() == 1) return;
    std::vector<at::Tensor> ones{floats(2)};
    // Either the call fails because the loss of the peer is known already, or the future fails
    // later.
    const Thrown thrown = thrown_by([&] {
      auto future = comm.process_group()->allreduce(ones)->getFuture();
      future->wait();
      ASSERT_TRUE(future->hasError());
      std::rethrow_exception(future->exception_ptr());
    });
    EXPECT_EQ(thrown.code, YOKE_UNAVAILABLE) << thrown.text;
  });
}

// ---- One rank, and wrong arguments ----

TEST(World, OfOneRankNeedsNothing) {
  const auto world = World::connect({}, with(CommCheck::kFull));
  EXPECT_EQ(world->size(), 1);
  world->agree("plan", "x");
  EXPECT_EQ(world->from_rank0("key", "value"), "value");
  Communicator& comm = world->comm(YOKE_AXIS_BIT(YOKE_DP_SHARD), "unshard");
  EXPECT_EQ(&comm, &world->comm(YOKE_AXIS_BIT(YOKE_DP_SHARD), "unshard"));
  at::Tensor in = at::arange(6, at::kFloat), out = at::zeros({2, 3});
  comm.all_gather(out, in)->wait();
  EXPECT_TRUE(at::equal(out.view(-1), in));
  out.zero_();
  comm.reduce_scatter(out, in, YOKE_AVG)->wait();
  EXPECT_TRUE(at::equal(out.view(-1), in));
  comm.all_reduce(out, YOKE_SUM)->wait();
  comm.broadcast(out, 0)->wait();
  comm.barrier();
  EXPECT_TRUE(at::equal(out.view(-1), in));
  EXPECT_TRUE(world->counts().empty());
  EXPECT_NO_THROW(world->check_collectives());
  world->shutdown();
}

TEST(World, RefusesWhatDoesNotFit) {
  Rendezvous two_ways;
  two_ways.world_size = 2;
  EXPECT_EQ(thrown_by([&] { World::connect(two_ways, {}); }).code, YOKE_INVALID_ARGUMENT);
  Rendezvous outside;
  outside.rank = 1;
  EXPECT_EQ(thrown_by([&] { World::connect(outside, {}); }).text,
            "rank 1 of a world of 1; allowed: 0 to 0");
  orderly_virtual_ranks(2, {}, [](World& world) {
    EXPECT_EQ(thrown_by([&] { world.comm(YOKE_ALL_AXES, "x"); }).code, YOKE_FAILED_PRECONDITION);
    EXPECT_EQ(thrown_by([&] {
                world.set_mesh(Mesh({1, 1, 3, 1, 1}));
              }).code,
              YOKE_INVALID_ARGUMENT);
    world.set_mesh(Mesh({1, 1, 2, 1, 1}));
    EXPECT_EQ(thrown_by([&] { world.comm(32, "x"); }).code, YOKE_INVALID_ARGUMENT);
    Communicator& comm = world.comm(YOKE_ALL_AXES, "x");
    const auto refused = [&](const std::function<void()>& f, const char* part) {
      const Thrown thrown = thrown_by(f);
      EXPECT_EQ(thrown.code, YOKE_INVALID_ARGUMENT) << part;
      EXPECT_NE(thrown.text.find(part), std::string::npos) << thrown.text;
    };
    refused([&] { comm.all_reduce(at::ones({4, 4}).t(), YOKE_SUM); }, "not compact");
    refused([&] { comm.all_reduce(at::ones({4}), 9); }, "YOKE_SUM");
    refused([&] { comm.all_reduce(at::ones({4}, at::kLong), YOKE_AVG); }, "use the sum");
    refused([&] { comm.all_reduce(at::ones({4}, at::kBool), YOKE_SUM); }, "bool");
    refused([&] { comm.all_gather(at::ones({7}), at::ones({4})); }, "2 parts in the whole");
    refused([&] { comm.reduce_scatter(at::ones({4}), at::ones({8}, at::kDouble), YOKE_SUM); },
            "one dtype");
    refused([&] { comm.broadcast(at::ones({4}), 2); }, "root 2; allowed: 0 to 1");
    refused([&] { comm.all_reduce(at::Tensor(), YOKE_SUM); }, "undefined");
    comm.barrier();
  });
}

}  // namespace
}  // namespace yoke::test
