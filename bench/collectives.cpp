// Compares collectives of Yoke's Communicator with those of another c10d backend, for 2 ranks: as
// processes that share memory, with c10d's Gloo backend; and as threads, with the in-process
// backend that the Communicator uses. The calls of both are interleaved, and so are copies of the
// same size, of which both ranks make one at the same time. Prints the times on rank 0.
// Usage: collectives
#include <ATen/Parallel.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include "bench/interleaved.hpp"
#include "core/comm/thread_backend.hpp"
#include "core/comm/virtual_world.hpp"
#include "core/comm/world.hpp"
#include "yoke/error.hpp"

namespace {

using namespace yoke;
using namespace yoke::bench;

constexpr int32_t kRanks = 2;

struct Size {
  const char* text;
  int64_t bytes;
  int rounds;
  int calls;  // one after the other, in each round
};
constexpr Size kSizes[] = {{"64 B", 64, 101, 20},
                           {"4 KiB", 4 << 10, 101, 20},
                           {"64 KiB", 64 << 10, 101, 10},
                           {"1 MiB", 1 << 20, 51, 4},
                           {"16 MiB", 16 << 20, 25, 2}};

// The two communicators that a rank compares.
struct Sides {
  Communicator& ours;
  c10d::Backend& raw;
};

// One collective on both communicators. `whole` has all bytes of a Size, `part` half of them.
struct Collective {
  const char* name;
  std::function<void()> raw, ours;
};

std::vector<Collective> collectives(const Sides& s, at::Tensor& whole, at::Tensor& part) {
  return {{"all_reduce",
           [&] {
             std::vector<at::Tensor> tensors{whole};
             s.raw.allreduce(tensors, c10d::AllreduceOptions())->wait();
           },
           [&] { s.ours.all_reduce(whole, YOKE_SUM)->wait(); }},
          {"all_gather",
           [&] { s.raw._allgather_base(whole, part, c10d::AllgatherOptions())->wait(); },
           [&] { s.ours.all_gather(whole, part)->wait(); }},
          {"reduce_scatter",
           [&] { s.raw._reduce_scatter_base(part, whole, c10d::ReduceScatterOptions())->wait(); },
           [&] { s.ours.reduce_scatter(part, whole, YOKE_SUM)->wait(); }}};
}

// The times of one collective of one size.
struct Times {
  Samples raw{"raw", {}}, ours{"ours", {}}, copy{"copy", {}};
};

void print_row(const char* name, const Size& size, const Times& times) {
  const Spread raw = spread(times.raw.seconds), ours = spread(times.ours.seconds);
  const Spread faster = ratio(times.raw, times.ours), of_copy = ratio(times.copy, times.ours);
  std::printf(
      "| %-14s | %6s | %8.1f (%.1f) | %8.1f (%.1f) | %.1fx (%.1f .. %.1f) | %.2f (%.2f) |\n",
      name,
      size.text,
      raw.median * 1e6,
      raw.min * 1e6,
      ours.median * 1e6,
      ours.min * 1e6,
      faster.median,
      faster.min,
      faster.max,
      of_copy.median,
      spread(times.copy.seconds).min / ours.min);
}

void measure(int32_t rank, const Sides& sides, const char* title) {
  if (rank == 0) {
    std::printf(
        "\n%s\n| operation | whole | raw, us: median (best) | ours, us | raw / ours | copy / ours: "
        "median (of the best) |\n"
        "|---|---|---|---|---|---|\n",
        title);
  }
  for (const Size& size : kSizes) {
    at::Tensor whole = at::zeros({size.bytes / 4}, at::kFloat),
               part = at::zeros({size.bytes / 4 / kRanks}, at::kFloat);
    at::Tensor from = at::zeros_like(whole), to = at::zeros_like(whole);
    const auto copy = [&] { std::memcpy(to.data_ptr(), from.const_data_ptr(), size.bytes); };
    for (const Collective& c : collectives(sides, whole, part)) {
      Times times;
      for (int round = -3; round < size.rounds; ++round) {
        const double raw = time_calls(size.calls, c.raw), ours = time_calls(size.calls, c.ours),
                     copied = time_calls(size.calls, copy);
        if (round < 0) continue;  // warm-up: the first rounds touch memory and connect
        times.raw.seconds.push_back(raw);
        times.ours.seconds.push_back(ours);
        times.copy.seconds.push_back(copied);
      }
      if (rank == 0) print_row(c.name, size, times);
    }
  }
}

Communicator& world_comm(World& world) {
  world.set_mesh(Mesh({1, 1, kRanks, 1, 1}));
  return world.comm(YOKE_ALL_AXES, "bench");
}

void process_rank(int32_t rank, const std::string& folder) {
  Rendezvous meet;
  meet.rank = rank;
  meet.world_size = kRanks;
  meet.control_socket = folder + "/ours";
  CommOptions shared;
  shared.transport = CommTransport::kShm;
  const auto world = World::connect(meet, shared);
  auto store = c10::make_intrusive<c10d::FileStore>(folder + "/raw", kRanks);
  auto options = c10d::ProcessGroupGloo::Options::create();
  options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")};
  const c10::intrusive_ptr<c10d::Backend> raw =
      c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, kRanks, options);
  measure(rank,
          {world_comm(*world), *raw},
          "2 processes that share memory; raw: c10d::ProcessGroupGloo");
  world->shutdown();
}

// Runs the second rank in a child process, which is forked before LibTorch starts a thread.
int over_processes() {
  char folder[] = "/tmp/yoke-bench-XXXXXX";
  if (mkdtemp(folder) == nullptr)
    throw Error(YOKE_FAILED_PRECONDITION, "cannot make a folder in /tmp");
  const pid_t child = fork();
  if (child < 0) throw Error(YOKE_RESOURCE_EXHAUSTED, "fork failed");
  at::set_num_threads(1);
  process_rank(child == 0 ? 1 : 0, folder);
  std::fflush(stdout);
  if (child == 0) _exit(0);
  int status = 0;
  waitpid(child, &status, 0);
  for (const char* file : {"/ours", "/raw"}) unlink((std::string(folder) + file).c_str());
  rmdir(folder);
  return status == 0 ? 0 : 1;
}

void thread_rank(int32_t rank, const std::shared_ptr<VirtualWorld>& shared) {
  Rendezvous meet;
  meet.rank = rank;
  meet.world_size = kRanks;
  meet.virtual_world = shared;
  const auto world = World::connect(meet, {});
  const c10::intrusive_ptr<c10d::Backend> raw =
      c10::make_intrusive<ThreadBackend>(shared->hub("raw", {0, 1}), rank);
  measure(rank, {world_comm(*world), *raw}, "2 threads; raw: the in-process backend");
  world->shutdown();
}

void over_threads() {
  const auto shared = make_virtual_world(kRanks);
  std::thread other(thread_rank, 1, shared);
  thread_rank(0, shared);
  other.join();
}

}  // namespace

int main() {
  try {
    const int code = over_processes();
    over_threads();
    return code;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "collectives: %s\n", error.what());
    return 1;
  }
}
