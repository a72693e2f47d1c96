// Tests what ranks that share memory (core/comm/shm) do when one of them is lost.
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <thread>

#include "core/control/member.hpp"
#include "tests/ranks/local_programs.hpp"
#include "tests/support/process_ranks.hpp"

namespace yoke::test {
namespace {

namespace fs = std::filesystem;

CommOptions over_shared_memory() {
  CommOptions options;
  options.transport = CommTransport::kShm;
  return options;
}

Communicator& world_comm(World& world) {
  world.set_mesh(Mesh({1, 1, world.size(), 1, 1}));
  return world.comm(YOKE_ALL_AXES, "test");
}

void wait_for_file(const fs::path& path) {
  while (!fs::exists(path)) std::this_thread::yield();
}
void make_file(const fs::path& path) {
  std::ofstream(path).put('1');
}

TEST(SharedMemoryLoss, PassesAFailureToAFuture) {
  run_ranks(2, [](int rank, const std::string& socket) {
    const auto world = connect(rank, 2, socket, over_shared_memory());
    auto* group = world_comm(*world).process_group();
    // Rank 1 ends while the collective of rank 0 is in flight. A message over the control plane
    // could not order them, because rank 0 may learn of the end before its message has been sent.
    const fs::path in_flight = socket + ".in_flight";
    if (rank == 1) return wait_for_file(in_flight);
    std::vector<at::Tensor> ones{floats(2)};
    const Thrown thrown = thrown_by([&] {
      const auto future = group->allreduce(ones)->getFuture();
      make_file(in_flight);
      future->wait();
      ASSERT_TRUE(future->hasError());
      std::rethrow_exception(future->exception_ptr());
    });
    EXPECT_EQ(thrown.code, YOKE_UNAVAILABLE) << thrown.text;
  });
}

// Rank 3 ends, which is no loss to the group of ranks 0 and 1. Rank 0 knows of it, gives up its
// collective and uses the memory for something else. Then rank 1 begins the same collective.
TEST(SharedMemoryLoss, WritesNothingOnceACallerHasGivenUp) {
  run_ranks(4, [](int rank, const std::string& socket) {
    auto world = connect(rank, 4, socket, over_shared_memory());
    world->set_mesh(Mesh({1, 1, 2, 1, 2}));
    Communicator& comm = world->comm(YOKE_AXIS_BIT(YOKE_TP), "test");
    comm.barrier();
    const fs::path ready = socket + ".ready", gave_up = socket + ".gave_up",
                   ends = socket + ".ends";
    if (rank == 3) return wait_for_file(ready);
    if (rank == 2) return wait_for_file(ends);
    if (rank == 1) {
      wait_for_file(gave_up);
      std::vector<at::Tensor> ones{floats(4)};
      thrown_by([&] { comm.process_group()->allreduce(ones); });
      make_file(ends);
      return;
    }
    std::vector<float> memory(4, 1);
    make_file(ready);
    while (!world->member()->lost()) std::this_thread::yield();
    at::Tensor sum = at::from_blob(memory.data(), {4});
    const Thrown thrown = thrown_by([&] { comm.all_reduce(sum, YOKE_SUM)->wait(); });
    EXPECT_EQ(thrown.code, YOKE_UNAVAILABLE) << thrown.text;
    memory.assign(4, 7);
    make_file(gave_up);
    wait_for_file(ends);
    world.reset();
    EXPECT_EQ(memory, std::vector<float>(4, 7));
  });
}

// Objects of shared memory are files. Other tests make folders there.
std::set<std::string> objects_of_dev_shm() {
  std::set<std::string> names;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator("/dev/shm", none))
    if (!entry.is_directory(none)) names.insert(entry.path().filename());
  return names;
}

// Exchanges random tensors until a rank is lost.
void exchange_until_lost(World& world, Communicator& comm) {
  std::mt19937 random(3);  // the same numbers on every rank
  for (;;) {
    const auto n = static_cast<int64_t>(random() % 200'000);
    at::Tensor t = at::ones({n}), all = at::ones({n * world.size()});
    const auto first = comm.all_reduce(t, YOKE_SUM);
    const auto second = comm.all_gather(all, at::ones({n}));
    second->wait();
    first->wait();
    ASSERT_TRUE(at::equal(t, at::full({n}, static_cast<float>(world.size()))));
  }
}

// The timeout is one minute. A rank that fails earlier has detected that its peer ended.
TEST(SharedMemoryLoss, OutlivesKilledRanksAndLeavesNothing) {
  const auto before = objects_of_dev_shm();
  for (int start = 0; start < 100; ++start) {
    const int victim = start % 3;
    const auto ends = spawn_ranks(3, [&](int rank, const std::string& socket) {
      const Thrown thrown = thrown_by([&] {
        const auto world = connect(rank, 3, socket, over_shared_memory());
        if (rank == victim) {
          std::thread([start] {
            std::this_thread::sleep_for(std::chrono::microseconds(500 * (start % 60)));
            ::kill(::getpid(), SIGKILL);
          }).detach();
        }
        Communicator& comm = world_comm(*world);
        exchange_until_lost(*world, comm);
      });
      EXPECT_EQ(thrown.code, YOKE_UNAVAILABLE) << "rank " << rank << ": " << thrown.text;
    });
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(ends[rank].signal, rank == victim ? SIGKILL : 0) << "start " << start;
      EXPECT_EQ(ends[rank].code, 0) << "start " << start << ", rank " << rank;
    }
  }
  EXPECT_EQ(objects_of_dev_shm(), before);
}

}  // namespace
}  // namespace yoke::test
