// Tests communicators between processes, over Gloo and through shared memory. The ranks are forked
// from the parent process, which therefore must neither start a thread nor use tensors.
#include <signal.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "core/control/member.hpp"
#include "tests/ranks/message_programs.hpp"
#include "tests/support/process_ranks.hpp"

namespace yoke::test {
namespace {

// The transports of processes.
class Processes : public ::testing::TestWithParam<CommTransport> {
 protected:
  CommOptions with(CommCheck check = CommCheck::kStep) const {
    CommOptions options;
    options.check = check;
    options.transport = GetParam();
    return options;
  }
  bool shared() const { return GetParam() == CommTransport::kShm; }
};

INSTANTIATE_TEST_SUITE_P(Transports,
                         Processes,
                         ::testing::Values(CommTransport::kGloo, CommTransport::kShm),
                         [](const auto& info) {
                           return info.param == CommTransport::kShm ? "Shm" : "Gloo";
                         });

Communicator& shard_comm(World& world) {
  world.set_mesh(Mesh({1, 1, world.size(), 1, 1}));
  return world.comm(YOKE_AXIS_BIT(YOKE_DP_SHARD), "reduce");
}

struct Case {
  Mesh::Degrees degrees;
  uint32_t seed;
  CommCheck check;
};

TEST_P(Processes, GiveNaiveSumsOnAnyAxesInAnyOrderOfCommunicators) {
  for (const Case& c : {Case{{1, 1, 2, 1, 1}, 2, CommCheck::kStep},
                        Case{{1, 1, 3, 1, 1}, 3, CommCheck::kOff},
                        Case{{1, 2, 2, 1, 1}, 4, CommCheck::kStep},
                        Case{{1, 1, 2, 1, 1}, 5, CommCheck::kFull},
                        Case{{1, 1, 2, 1, 2}, 6, CommCheck::kFull}}) {
    const Mesh mesh(c.degrees);
    processes(mesh.size(), with(c.check), [&](World& world) {
      run_random_program(world, mesh, c.seed, 25, c.check == CommCheck::kFull);
    });
  }
}

TEST_P(Processes, ThatDisagreeLearnWhoDoesWhatBeforeAnythingIsSent) {
  for (const int ranks : {2, 3}) {
    for (const Disagreement& d : disagreements())
      processes(ranks, with(CommCheck::kFull), [&](World& world) { disagree(world, d); });
  }
}

TEST_P(Processes, MayScatterAndGatherInPlace) {
  processes(3, with(), scatter_and_gather_in_place);
}

TEST_P(Processes, GatherInAnyShape) {
  processes(3, with(), gather_in_any_shape);
}

// Tests both algorithms of the transport's all_reduce, with strided tensors, which only direct
// users of the ProcessGroup pass.
TEST_P(Processes, ReduceStridedTensorsOfOthers) {
  processes(2, with(), [](World& world) {
    c10d::ProcessGroup* group = shard_comm(world).process_group();
    for (const int64_t n : {3, 300}) {
      at::Tensor t = at::arange(n * n, at::kFloat).remainder(50).view({n, n}).t();
      const at::Tensor expected = t * 2;
      std::vector<at::Tensor> tensors{t};
      group->allreduce(tensors)->wait();
      EXPECT_TRUE(at::equal(t, expected)) << n;
    }
    std::vector<at::Tensor> flags{at::zeros({2}, at::kBool)};
    flags[0][world.rank()] = true;
    c10d::AllreduceOptions either;
    either.reduceOp = c10d::ReduceOp::MAX;
    group->allreduce(flags, either)->wait();
    EXPECT_TRUE(flags[0].all().item<bool>());
  });
}

TEST_P(Processes, ExchangeMessages) {
  for (const CommCheck check : {CommCheck::kOff, CommCheck::kStep, CommCheck::kFull})
    processes(3, with(check), exchange_messages);
}

TEST_P(Processes, NoticeThatTheirMessagesDiffer) {
  for (const MessageFault& fault : message_faults())
    processes(3, with(), [&](World& world) { differ_in_messages(world, fault); });
  processes(3, with(), send_to_another_rank);
}

TEST_P(Processes, CompareMessagesBeforeTheyAreReceived) {
  for (const auto& faults : {message_faults(), grave_message_faults()}) {
    for (const MessageFault& fault : faults) {
      if (fault.full_text == nullptr) continue;
      run_ranks(2, [&](int rank, const std::string& socket) {
        compare_messages(*connect(rank, 2, socket, with(CommCheck::kFull)), fault, !shared());
      });
    }
  }
}

TEST_P(Processes, ReportADifferentMessageWheneverItIsWaitedFor) {
  run_ranks(2, [&](int rank, const std::string& socket) {
    wait_again_after_a_difference(*connect(rank, 2, socket, with(CommCheck::kFull)));
  });
}

TEST_P(Processes, AgreeAndExchangeTexts) {
  processes(3, with(), agree_and_exchange_texts);
}

TEST_P(Processes, AwaitASlowRankLongerThanTheTimeout) {
  CommOptions options = with();
  options.timeout = std::chrono::seconds(4);
  processes(3, options, await_a_slow_rank);
}

TEST_P(Processes, AwaitNoRankThatLeaves) {
  run_ranks(3, [this](int rank, const std::string& socket) {
    const auto world = connect(rank, 3, socket, with());
    // The others must be connected when rank 1 leaves.
    const auto mark = [&](int of) { return socket + ".connected-" + std::to_string(of); };
    std::ofstream(mark(rank)).close();
    while (!std::filesystem::exists(mark(0)) || !std::filesystem::exists(mark(2)))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    await_a_rank_that_leaves(*world);
  });
}

TEST_P(Processes, AreReachedThroughAProcessGroup) {
  processes(2, with(), use_process_group);
  processes(3, with(CommCheck::kFull), use_process_group);
}

TEST_P(Processes, FindEachOtherThroughTcpToo) {
  // The port is very likely free.
  const int port = 20000 + getpid() % 20000;
  run_ranks(2, [this, port](int rank, const std::string&) {
    Rendezvous rendezvous;
    rendezvous.rank = rank;
    rendezvous.world_size = rendezvous.local_world_size = 2;
    rendezvous.master_addr = "127.0.0.1";
    rendezvous.master_port = port;
    const auto world = World::connect(rendezvous, with());
    world->agree("plan", "abc");
    at::Tensor ones = floats(2);
    shard_comm(*world).all_reduce(ones, YOKE_SUM)->wait();
    EXPECT_EQ(ones[1].item<float>(), 2);
    world->shutdown();
  });
}

TEST_P(Processes, MustMakeCommunicatorsInOneOrder) {
  run_ranks(2, [this](int rank, const std::string& socket) {
    const auto world = connect(rank, 2, socket, with());
    world->set_mesh(Mesh({1, 1, 2, 1, 1}));
    const Thrown thrown = thrown_by(
        [&] { world->comm(YOKE_AXIS_BIT(YOKE_DP_SHARD), rank == 0 ? "unshard" : "reduce"); });
    EXPECT_EQ(thrown.code, YOKE_FAILED_PRECONDITION);
    EXPECT_NE(thrown.text.find("rank 1 has 'dp_shard (reduce)'"), std::string::npos) << thrown.text;
    world->shutdown();
  });
}

// The tensors have the same size in bytes, so Gloo accepts them and only the hash shows the
// difference. Shared memory refuses them at once.
TEST_P(Processes, NoticeThatTheyIssuedDifferentCollectives) {
  processes(3, with(CommCheck::kStep), [this](World& world) {
    Communicator& comm = shard_comm(world);
    comm.broadcast(floats(4), 0)->wait();
    EXPECT_NO_THROW(world.check_collectives());
    at::Tensor odd = at::ones({4}, world.rank() == 2 ? at::kInt : at::kFloat);
    const Thrown now = thrown_by([&] { comm.broadcast(odd, 0)->wait(); });
    EXPECT_EQ(now.code, shared() ? YOKE_FAILED_PRECONDITION : 0) << now.text;
    comm.broadcast(floats(4), 0)->wait();
    const Thrown thrown = thrown_by([&] { world.check_collectives(); });
    EXPECT_EQ(thrown.code, YOKE_FAILED_PRECONDITION);
    EXPECT_EQ(thrown.text,
              "the collectives of dp_shard (reduce) differ: rank 0 issues broadcast (root 0) of 4 "
              "x fp32 as "
              "collective 2, but rank 2 issues broadcast (root 0) of 4 x int32 as collective 2");
  });
}

// ---- Ranks that end without shutdown ----
//
// The timeout is one minute. A rank that fails earlier has detected that its peer ended.

TEST_P(Processes, LearnThatAPeerWasKilled) {
  const auto ends = spawn_ranks(3, [this](int rank, const std::string& socket) {
    const auto world = connect(rank, 3, socket, with());
    Communicator& comm = shard_comm(*world);
    comm.barrier();
    if (rank == 2) raise(SIGKILL);
    const Thrown thrown = thrown_by([&] { comm.all_reduce(floats(4), YOKE_SUM)->wait(); });
    EXPECT_EQ(thrown.code, YOKE_UNAVAILABLE) << thrown.text;
    EXPECT_NE(thrown.text.find("all_reduce (sum) of 4 x fp32 as collective 2"), std::string::npos)
        << thrown.text;
    const std::string cause =
        world->member()->report_failure(thrown.text, Member::Failure::kLost, 5);
    EXPECT_EQ(cause.find("rank 2 ("), 0u) << cause;
  });
  EXPECT_EQ(ends[0].code, 0);
  EXPECT_EQ(ends[1].code, 0);
  EXPECT_EQ(ends[2].signal, SIGKILL);
}

TEST_P(Processes, LearnThatAPeerLeft) {
  run_ranks(2, [this](int rank, const std::string& socket) {
    const auto world = connect(rank, 2, socket, with());
    if (rank == 1) {
      shard_comm(*world);
      return;
    }
    // The peer may be lost while this rank connects or afterwards.
    const Thrown thrown = thrown_by([&] { shard_comm(*world).barrier(); });
    EXPECT_EQ(thrown.code, YOKE_UNAVAILABLE) << thrown.text;
  });
}

TEST_P(Processes, EndWaitingWhenCancelledAndNotifyThePeers) {
  run_ranks(2, [this](int rank, const std::string& socket) {
    std::atomic<bool> cancel{false};
    CommOptions options = with();
    options.cancel = &cancel;
    const auto world = connect(rank, 2, socket, options);
    Communicator& comm = shard_comm(*world);
    Communicator& other = world->comm(YOKE_AXIS_BIT(YOKE_DP_SHARD), "unshard");
    comm.barrier();
    if (rank == 0) {
      const auto work = comm.reduce_scatter(floats(4), floats(8), YOKE_SUM);
      std::thread later([&] { cancel = true; });
      const Thrown thrown = thrown_by([&] { work->wait(); });
      later.join();
      EXPECT_EQ(thrown.code, YOKE_CANCELLED) << thrown.text;
    } else {
      // This rank waits for rank 0, which is cancelled while it waits in a different communicator,
      // and then ends.
      EXPECT_EQ(thrown_by([&] { other.barrier(); }).code, YOKE_UNAVAILABLE);
    }
  });
}

TEST_P(Processes, EndWaitingAfterTheTimeout) {
  run_ranks(2, [this](int rank, const std::string& socket) {
    const auto world = connect(rank, 2, socket, with());
    Communicator& comm = shard_comm(*world);
    Communicator& other = world->comm(YOKE_AXIS_BIT(YOKE_DP_SHARD), "unshard");
    comm.barrier();
    if (rank == 1) {
      EXPECT_EQ(thrown_by([&] { other.barrier(); }).code, YOKE_UNAVAILABLE);
      return;
    }
    // The short timeout is set only now, because connecting may take longer on a busy machine.
    comm.process_group()->getDefaultBackend()->setTimeout(std::chrono::milliseconds(1000));
    const Thrown thrown = thrown_by([&] { comm.all_reduce(floats(4), YOKE_SUM)->wait(); });
    EXPECT_EQ(thrown.code, YOKE_DEADLINE_EXCEEDED) << thrown.text;
    for (const char* part : {"all_reduce (sum) of 4 x fp32", "dp_shard", "1 s", "comm.timeout"}) {
      EXPECT_NE(thrown.text.find(part), std::string::npos) << thrown.text;
    }
  });
}

TEST_P(Processes, NameTheRankThatDoesNotArrive) {
  run_ranks(2, [this](int rank, const std::string& socket) {
    if (rank == 1) return;
    CommOptions options = with();
    options.join_timeout = std::chrono::milliseconds(100);
    const Thrown thrown = thrown_by([&] { connect(rank, 2, socket, options); });
    EXPECT_EQ(thrown.code, YOKE_UNAVAILABLE);
    EXPECT_EQ(thrown.text.find("rank 1 of 2 is missing; present: 0 ("), 0u) << thrown.text;
  });
}

}  // namespace
}  // namespace yoke::test
