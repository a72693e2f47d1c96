// Tests what is particular to ranks that share memory (core/comm/shm). comm_processes_test.cpp has
// the tests that all processes pass, with random collectives among them.
#include <sched.h>
#include <sys/resource.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "core/control/member.hpp"
#include "tests/ranks/local_programs.hpp"
#include "tests/support/process_ranks.hpp"

namespace yoke::test {
namespace {

namespace fs = std::filesystem;
using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

CommOptions shared(CommTransport transport = CommTransport::kShm) {
  CommOptions options;
  options.transport = transport;
  return options;
}

Communicator& world_comm(World& world, const char* purpose = "test") {
  return world.comm(YOKE_ALL_AXES, purpose);
}
void line_up(World& world) {
  world.set_mesh(Mesh({1, 1, world.size(), 1, 1}));
}

TEST(SharedMemory, GivesNaiveSumsOnOneToFiveRanks) {
  for (const Mesh::Degrees& degrees :
       {Mesh::Degrees{1, 1, 1, 1, 1}, Mesh::Degrees{1, 1, 5, 1, 1}, Mesh::Degrees{1, 2, 1, 1, 2}}) {
    const Mesh mesh(degrees);
    processes(mesh.size(), shared(), [&](World& world) {
      run_random_program(world, mesh, 20 + mesh.size(), 40, false);
    });
  }
}

TEST(SharedMemory, SumsInRankOrderWithTheSameBitsOnEveryRank) {
  for (const int ranks : {2, 3, 4}) processes(ranks, shared(), sum_in_rank_order);
}

TEST(SharedMemory, TakesUnevenParts) {
  processes(2, shared(), give_uneven_parts);
}

// Rank r sends element k of its parts to rank k; the sizes are drawn at random, 0 among them.
TEST(SharedMemory, PassesPartsOfRandomSizes) {
  constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16, at::kByte, at::kDouble};
  processes(3, shared(), [&](World& world) {
    line_up(world);
    auto* group = world_comm(world).process_group();
    const int n = world.size(), me = world.rank();
    std::mt19937 random(7);  // the same numbers on every rank
    for (int round = 0; round < 40; ++round) {
      const auto dtype = kTypes[round % 4];
      int64_t rows[3][3], most = 0;
      for (auto& from : rows)
        for (int64_t& count : from)
          count = random() % 4 == 0 ? 0 : static_cast<int64_t>(random() % 2000);
      std::vector<int64_t> sent, received;
      std::vector<at::Tensor> pieces{at::empty({0}, dtype)}, expected{at::empty({0}, dtype)};
      const auto piece = [&](int from, int to) {
        return at::full({rows[from][to]}, 10 * from + to, at::TensorOptions(dtype));
      };
      for (int r = 0; r < n; ++r) {
        sent.push_back(rows[me][r]);
        received.push_back(rows[r][me]);
        pieces.push_back(piece(me, r));
        expected.push_back(piece(r, me));
        most += rows[r][me];
      }
      at::Tensor in = at::cat(pieces), out = at::zeros({most}, dtype);
      group->alltoall_base(out, in, received, sent)->wait();
      ASSERT_TRUE(at::equal(out, at::cat(expected))) << "round " << round;
    }
  });
}

// ---- Works ----

// Hundreds of collectives on two communicators, issued in different orders, before any is waited
// for; then waited for in an order of each rank's own.
TEST(SharedMemory, HasManyCollectivesInFlight) {
  processes(3, shared(), [](World& world) {
    line_up(world);
    Communicator* comms[] = {&world_comm(world, "a"), &world_comm(world, "b")};
    std::vector<at::Tensor> tensors;
    std::vector<std::unique_ptr<CommWork>> works;
    for (int c = 0; c < 2; ++c) {
      Communicator& comm = *comms[(c + world.rank()) % 2];
      for (int i = 0; i < 300; ++i) {
        tensors.push_back(at::full({1 + i * 7}, static_cast<float>(world.rank() + i)));
        works.push_back(comm.all_reduce(tensors.back(), YOKE_SUM));
      }
    }
    std::vector<size_t> order(works.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(world.rank()));
    for (const size_t k : order) {
      works[k]->wait();
      const auto i = static_cast<float>(k % 300);
      EXPECT_TRUE(at::equal(tensors[k], at::full({tensors[k].numel()}, 3 + 3 * i))) << k;
    }
  });
}

// A rank that starts a collective and computes delays nobody.
TEST(SharedMemory, CompletesWithoutTheOtherRanksWaiting) {
  processes(2, shared(), [](World& world) {
    line_up(world);
    Communicator& comm = world_comm(world);
    at::Tensor t = at::ones({1 << 20});
    const auto work = comm.all_reduce(t, YOKE_SUM);
    if (world.rank() == 1) world.from_rank0("rank 0 has its result", "");
    work->wait();
    if (world.rank() == 0) world.from_rank0("rank 0 has its result", "");
    EXPECT_EQ(t[(1 << 20) - 1].item<float>(), 2);
  });
}

TEST(SharedMemory, CompletesDroppedWorksWithALaterOne) {
  processes(2, shared(), [](World& world) {
    line_up(world);
    Communicator& comm = world_comm(world);
    std::vector<at::Tensor> tensors;
    for (int i = 0; i < 20; ++i) {
      tensors.push_back(at::full({50}, static_cast<float>(world.rank())));
      comm.broadcast(tensors.back(), 1);
    }
    comm.barrier();
    for (const at::Tensor& t : tensors) EXPECT_TRUE(at::equal(t, at::ones({50})));
  });
}

TEST(SharedMemory, IsWaitedForByAnyThread) {
  processes(2, shared(), [](World& world) {
    line_up(world);
    auto* group = world_comm(world).process_group();
    for (int round = 0; round < 50; ++round) {
      std::vector<std::vector<at::Tensor>> tensors;
      Works works;
      for (int i = 0; i < 4; ++i) {
        tensors.push_back({at::full({3000}, static_cast<float>(i))});
        works.push_back(group->allreduce(tensors.back()));
      }
      std::vector<std::thread> threads;
      for (const auto& work : works) threads.emplace_back([&work] { work->wait(); });
      for (std::thread& t : threads) t.join();
      for (int i = 0; i < 4; ++i)
        ASSERT_TRUE(at::equal(tensors[i][0], at::full({3000}, static_cast<float>(2 * i))));
    }
  });
}

// Futures complete although no thread of the rank waits for a work.
TEST(SharedMemory, CompletesFutures) {
  processes(3, shared(), [](World& world) {
    line_up(world);
    auto* group = world_comm(world).process_group();
    std::vector<std::vector<at::Tensor>> tensors;
    std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures;
    std::atomic<int> called{0};
    for (int i = 0; i < 30; ++i) {
      tensors.push_back({at::full({1 + i * 1000}, 1.0f)});
      futures.push_back(group->allreduce(tensors.back())->getFuture());
      futures.back()->addCallback([&](c10::ivalue::Future&) { ++called; });
    }
    for (const auto& future : futures) future->wait();
    for (const auto& t : tensors) EXPECT_EQ(t[0].sum().item<float>(), 3.0f * t[0].numel());
    while (called != 30) std::this_thread::yield();  // callbacks may run after the end of wait()
  });
}

// A sender may be hundreds of messages ahead, and the receiver may expect them in another order.
TEST(SharedMemory, KeepsMessagesUntilTheyAreReceived) {
  processes(2, shared(), [](World& world) {
    world.set_mesh(Mesh({2, 1, 1, 1, 1}));
    auto* group = world_comm(world).process_group();
    constexpr int kCount = 500, kTags = 5;
    const auto value = [](int i) { return at::full({i % 90}, static_cast<float>(i)); };
    if (world.rank() == 0) {
      for (int i = 0; i < kCount; ++i) {
        std::vector<at::Tensor> list{value(i)};
        group->send(list, 1, i % kTags)->wait();
        list[0].fill_(-1);  // the message has been copied
      }
    }
    world.agree("all are sent", "");
    for (int tag = kTags - 1; world.rank() == 1 && tag >= 0; --tag) {
      for (int i = tag; i < kCount; i += kTags) {
        std::vector<at::Tensor> list{at::zeros({i % 90})};
        group->recv(list, 0, tag)->wait();
        ASSERT_TRUE(at::equal(list[0], value(i))) << i;
      }
    }
  });
}

TEST(SharedMemory, RefusesMessagesToItself) {
  processes(2, shared(), [](World& world) {
    line_up(world);
    std::vector<at::Tensor> list{floats(2)};
    const Thrown thrown =
        thrown_by([&] { world_comm(world).process_group()->send(list, world.rank(), 0); });
    EXPECT_EQ(thrown.code, YOKE_INVALID_ARGUMENT);
    EXPECT_NE(thrown.text.find("except this rank"), std::string::npos) << thrown.text;
  });
}

// ---- Memory ----

int64_t shared_kib() {
  std::ifstream in("/proc/self/status");
  for (std::string word; in >> word;) {
    int64_t kib = 0;
    if (word == "RssShmem:" && in >> kib) return kib;
  }
  return -1;
}

TEST(SharedMemory, UsesItsMemoryAgain) {
  processes(2, shared(), [](World& world) {
    line_up(world);
    Communicator& comm = world_comm(world);
    at::Tensor t = at::ones({1 << 18}), parts = at::ones({1 << 18}), part = at::ones({1 << 17});
    for (int i = 0; i < 300; ++i) {  // 600 MB together
      t.fill_(1);
      comm.all_reduce(t, YOKE_SUM)->wait();
      comm.reduce_scatter(part, parts, YOKE_SUM)->wait();
    }
    EXPECT_EQ(t[5].item<float>(), 2);
    // Each rank maps both segments, with a few contributions of 1 MiB in each.
    EXPECT_LT(shared_kib(), 24 << 10);
    EXPECT_GT(shared_kib(), 1 << 10);
  });
}

void limit_files(rlim_t bytes) {
  const rlimit limit{bytes, bytes};
  ::setrlimit(RLIMIT_FSIZE, &limit);
}

// One rank cannot make a segment: all ranks use Gloo, or refuse to start.
TEST(SharedMemory, IsUsedByAllRanksOrByNone) {
  run_ranks(3, [](int rank, const std::string& socket) {
    if (rank == 1) limit_files(4096);
    const auto world = connect(rank, 3, socket, shared(CommTransport::kAuto));
    EXPECT_NE(world->transport().find("Gloo (note: no shared memory, "), std::string::npos)
        << world->transport();
    EXPECT_NE(world->transport().find("1.0 MiB"), std::string::npos) << world->transport();
    EXPECT_EQ(world->transport().find("rank 1: ") != std::string::npos, rank != 1);
    line_up(*world);
    at::Tensor t = floats(3);
    world_comm(*world).all_reduce(t, YOKE_SUM)->wait();
    EXPECT_EQ(t[0].item<float>(), 3);
    world->shutdown();
  });
  run_ranks(3, [](int rank, const std::string& socket) {
    if (rank == 1) limit_files(4096);
    const Thrown thrown = thrown_by([&] { connect(rank, 3, socket, shared()); });
    EXPECT_EQ(thrown.code, YOKE_INVALID_ARGUMENT) << thrown.text;
    EXPECT_NE(thrown.text.find("comm.transport = shm"), std::string::npos) << thrown.text;
    EXPECT_NE(thrown.text.find("ulimit -f"), std::string::npos) << thrown.text;
  });
}

TEST(SharedMemory, SaysHowMuchIsMissingInTheMiddleOfARun) {
  run_ranks(2, [](int rank, const std::string& socket) {
    limit_files(4 << 20);
    const auto world = connect(rank, 2, socket, shared());
    line_up(*world);
    Communicator& comm = world_comm(*world);
    at::Tensor t = at::ones({8 << 20});
    const Thrown thrown = thrown_by([&] { comm.all_reduce(t, YOKE_SUM); });
    EXPECT_EQ(thrown.code, YOKE_RESOURCE_EXHAUSTED) << thrown.text;
    EXPECT_NE(thrown.text.find("33.0 MiB"), std::string::npos) << thrown.text;
    EXPECT_NE(thrown.text.find("comm.transport=gloo"), std::string::npos) << thrown.text;
  });
}

// Ranks in containers of one machine do not find each other's processes.
TEST(SharedMemory, IsNotUsedAcrossContainers) {
  const auto in_own_namespace = [](const std::function<int()>& f) {
    if (::unshare(CLONE_NEWPID) != 0) return 77;
    const pid_t child = ::fork();
    if (child == 0) std::_Exit(f());
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
  };
  for (const CommTransport transport : {CommTransport::kAuto, CommTransport::kShm}) {
    const auto ends = spawn_ranks(2, [&](int rank, const std::string& socket) {
      const auto body = [&] {
        const Thrown thrown = thrown_by([&] {
          const auto world = connect(rank, 2, socket, shared(transport));
          EXPECT_EQ(world->transport(), "Gloo");
          world->shutdown();
        });
        EXPECT_EQ(thrown.code, transport == CommTransport::kShm ? YOKE_INVALID_ARGUMENT : 0);
        return ::testing::Test::HasFailure() ? 1 : 0;
      };
      std::_Exit(rank == 1 ? in_own_namespace(body) : body());
    });
    if (ends[1].code == 77) GTEST_SKIP() << "this user may not make a pid namespace";
    EXPECT_EQ(ends[0].code, 0);
    EXPECT_EQ(ends[1].code, 0);
  }
}

}  // namespace
}  // namespace yoke::test
