// Tests for every transport. The test program of each transport runs them on its kind of ranks,
// threads or processes.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "core/comm/world.hpp"
#include "yoke/error.hpp"
#include "yoke/torch.hpp"

namespace yoke::test {

// The code and the text of an Error; {0, ""} = none.
struct Thrown {
  int32_t code = 0;
  std::string text;
};
template <class F>
Thrown thrown_by(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return {e.code(), e.what()};
  }
  return {};
}

// ---- Random sequences of collectives, compared with naive sums ----

constexpr uint32_t kWholeAxes[] = {
    0b00100, 0b01000, 0b10000, 0b00110, 0b01100, 0b11111, 0b10010, 0b00001};

enum class Kind { kAllReduce, kAllGather, kReduceScatter, kBroadcast };

// A collective that was drawn at random.
struct Draw {
  uint32_t axes;
  std::string purpose;
  Kind kind;
  int32_t op;
  at::ScalarType dtype;
  std::vector<int64_t> shape;  // shape of one rank's part
  int64_t id;
};

// Generates the same random sequence of collectives on every rank. Values are small integers, so
// sums are exact in every dtype and every order, and results can be compared for equality.
class RandomProgram {
 public:
  explicit RandomProgram(uint32_t seed) : random_(seed) {}

  Draw next() {
    Draw d;
    d.id = ++id_;
    d.axes = kWholeAxes[pick(std::size(kWholeAxes))];
    d.purpose = pick(2) == 0 ? "unshard" : "reduce";
    d.kind = static_cast<Kind>(pick(4));
    constexpr at::ScalarType kTypes[] = {
        at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong, at::kInt, at::kByte};
    d.dtype = kTypes[pick(std::size(kTypes))];
    const bool integer = at::isIntegralType(d.dtype, true);
    do {
      d.op = static_cast<int32_t>(pick(4));
    } while (integer && d.op == YOKE_AVG);
    const int dims = 1 + static_cast<int>(pick(3));
    for (int i = 0; i < dims; ++i) d.shape.push_back(static_cast<int64_t>(pick(9)));
    if (pick(6) == 0) d.shape = {20000 + static_cast<int64_t>(pick(30000))};
    return d;
  }
  size_t pick(size_t n) { return random_() % n; }

 private:
  std::mt19937 random_;
  int64_t id_ = 0;
};

// Returns element i of the input of global rank r to the collective d.
inline double value(const Draw& d, int32_t r, int64_t i) {
  return static_cast<double>((d.id * 7 + r * 3 + i * 5) % 8);
}

inline at::Tensor filled(const Draw& d, int32_t r, const std::vector<int64_t>& shape) {
  at::Tensor t = at::empty(shape, at::kDouble);
  double* p = t.data_ptr<double>();
  for (int64_t i = 0; i < t.numel(); ++i) p[i] = value(d, r, i);
  return t.to(d.dtype);
}

// Returns the expected result of reducing element i over the peers.
inline double reduced(const Draw& d, const std::vector<int32_t>& peers, int64_t i) {
  double sum = 0, low = 1e9, high = -1e9;
  for (const int32_t r : peers) {
    sum += value(d, r, i);
    low = std::min(low, value(d, r, i));
    high = std::max(high, value(d, r, i));
  }
  if (d.op == YOKE_AVG) return sum / static_cast<double>(peers.size());
  return d.op == YOKE_SUM ? sum : d.op == YOKE_MAX ? high : low;
}

// A collective in flight and its expected result.
struct Running {
  std::unique_ptr<CommWork> work;
  at::Tensor result, expected, input;
};

inline int64_t numel(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

inline Running start(const Draw& d, Communicator& comm, const std::vector<int32_t>& peers) {
  const int32_t me = peers[comm.rank()];
  const auto size = static_cast<int64_t>(peers.size());
  const int64_t n = numel(d.shape);
  Running run;
  std::vector<double> expected;
  std::vector<int64_t> whole = d.shape;
  whole[0] *= size;
  if (d.kind == Kind::kAllReduce) {
    run.result = filled(d, me, d.shape);
    for (int64_t i = 0; i < n; ++i) expected.push_back(reduced(d, peers, i));
    run.work = comm.all_reduce(run.result, d.op);
  } else if (d.kind == Kind::kAllGather) {
    run.input = filled(d, me, d.shape);
    run.result = at::zeros(whole, at::TensorOptions(d.dtype));
    for (const int32_t r : peers) {
      for (int64_t i = 0; i < n; ++i) expected.push_back(value(d, r, i));
    }
    run.work = comm.all_gather(run.result, run.input);
  } else if (d.kind == Kind::kReduceScatter) {
    run.input = filled(d, me, whole);
    run.result = at::zeros(d.shape, at::TensorOptions(d.dtype));
    for (int64_t i = 0; i < n; ++i) expected.push_back(reduced(d, peers, comm.rank() * n + i));
    run.work = comm.reduce_scatter(run.result, run.input, d.op);
  } else {
    const auto root = static_cast<int32_t>(d.id % size);
    run.result = filled(d, me, d.shape);
    for (int64_t i = 0; i < n; ++i) expected.push_back(value(d, peers[root], i));
    run.work = comm.broadcast(run.result, root);
  }
  run.expected = at::tensor(expected, at::kDouble).to(d.dtype).view(run.result.sizes());
  return run;
}

// Returns the size in bytes of the input or the output, whichever is larger.
inline int64_t bytes_of(const Draw& d, int64_t size) {
  const bool whole = d.kind == Kind::kAllGather || d.kind == Kind::kReduceScatter;
  return numel(d.shape) * (whole ? size : 1) * static_cast<int64_t>(c10::elementSize(d.dtype));
}

// Runs `rounds` batches of up to six collectives on communicators of random axes. Unless one_order
// is set, every rank issues a batch in its own order of communicators. Every rank waits in its own
// order. Checks results and counts.
inline void run_random_program(
    World& world, const Mesh& mesh, uint32_t seed, int rounds, bool one_order) {
  world.set_mesh(mesh);
  for (const uint32_t axes : kWholeAxes) {  // all ranks must create communicators in the same order
    for (const char* purpose : {"unshard", "reduce"}) world.comm(axes, purpose);
  }
  world.reset_counts();
  RandomProgram program(seed);
  std::mt19937 own(seed * 31 + static_cast<uint32_t>(world.rank()));
  std::map<std::string, CommCount> expected;
  for (int round = 0; round < rounds; ++round) {
    std::vector<Draw> draws;
    std::map<std::pair<uint32_t, std::string>, std::vector<Draw>> per_comm;
    const size_t count = 1 + program.pick(6);
    for (size_t k = 0; k < count; ++k) {
      draws.push_back(program.next());
      per_comm[{draws.back().axes, draws.back().purpose}].push_back(draws.back());
    }
    std::vector<std::vector<Draw>> queues;
    for (auto& [key, queue] : per_comm) queues.push_back(queue);
    if (!one_order) std::shuffle(queues.begin(), queues.end(), own);
    std::vector<Running> running;
    for (const auto& queue : queues) {
      for (const Draw& d : queue) {
        const auto peers = mesh.peers(world.rank(), d.axes);
        running.push_back(start(d, world.comm(d.axes, d.purpose), peers));
        if (peers.size() == 1 || numel(d.shape) == 0) continue;
        CommCount& c = expected[axes_name(d.axes)];
        c.calls += 1;
        c.bytes += bytes_of(d, static_cast<int64_t>(peers.size()));
      }
    }
    std::shuffle(running.begin(), running.end(), own);
    for (Running& run : running) {
      run.work->wait();
      ASSERT_TRUE(at::equal(run.result, run.expected))
          << "rank " << world.rank() << " round " << round << "\n"
          << run.result << "\n"
          << run.expected;
    }
  }
  for (const auto& [axes, count] : world.counts()) {
    EXPECT_EQ(count.calls, expected[axes].calls) << axes;
    EXPECT_EQ(count.bytes, expected[axes].bytes) << axes;
  }
  EXPECT_NO_THROW(world.check_collectives());
}

// ---- Ranks that disagree ----

struct Disagreement {
  const char* what;
  void (*odd)(Communicator&);  // issued by the last rank
  const char* odd_text;
};

inline at::Tensor floats(int64_t n) {
  return at::ones({n});
}

inline const std::vector<Disagreement>& disagreements() {
  static const std::vector<Disagreement> all = {
      {"operation",
       [](Communicator& c) { c.broadcast(floats(12), 0)->wait(); },
       "broadcast (root 0) of 12 x fp32"},
      {"dtype",
       [](Communicator& c) { c.all_reduce(floats(12).to(at::kDouble), YOKE_SUM)->wait(); },
       "all_reduce (sum) of 12 x fp64"},
      {"count",
       [](Communicator& c) { c.all_reduce(floats(7), YOKE_SUM)->wait(); },
       "all_reduce (sum) of 7 x fp32"},
      {"reduce op",
       [](Communicator& c) { c.all_reduce(floats(12), YOKE_MAX)->wait(); },
       "all_reduce (max) of 12 x fp32"},
      {"order",
       [](Communicator& c) {
         at::Tensor out = floats(12 * c.size());
         c.all_gather(out, floats(12))->wait();
       },
       "all_gather"},
  };
  return all;
}

// The last rank issues a different collective. Every rank receives the error, and the communicator
// still works.
inline void disagree(World& world, const Disagreement& d) {
  world.set_mesh(Mesh({1, 1, world.size(), 1, 1}));
  Communicator& comm = world.comm(YOKE_AXIS_BIT(YOKE_DP_SHARD), "reduce");
  const bool last = world.rank() == world.size() - 1;
  comm.barrier();
  const Thrown thrown = thrown_by([&] {
    if (last) return d.odd(comm);
    comm.all_reduce(floats(12), YOKE_SUM)->wait();
  });
  EXPECT_EQ(thrown.code, YOKE_FAILED_PRECONDITION) << d.what << ": " << thrown.text;
  for (const std::string& part :
       {std::string("rank 0 issues all_reduce (sum) of 12 x fp32"),
        "rank " + std::to_string(world.size() - 1) + " issues " + d.odd_text,
        std::string("dp_shard")}) {
    EXPECT_NE(thrown.text.find(part), std::string::npos) << d.what << ": " << thrown.text;
  }
  at::Tensor ones = floats(3);
  comm.all_reduce(ones, YOKE_SUM)->wait();
  EXPECT_EQ(ones[0].item<float>(), static_cast<float>(world.size()));
}

// ---- Other requirements ----

inline void agree_and_exchange_texts(World& world) {
  world.agree("plan", "abc");
  EXPECT_EQ(world.from_rank0("folder", world.rank() == 0 ? std::string("run\0s", 5) : ""),
            std::string("run\0s", 5));
  EXPECT_EQ(world.from_rank0("empty", ""), "");
  const Thrown thrown = thrown_by([&] { world.agree("seed", world.rank() == 1 ? "2" : "1"); });
  EXPECT_EQ(thrown.code, YOKE_FAILED_PRECONDITION);
  EXPECT_EQ(thrown.text, "the ranks do not agree on seed: rank 0 has '1', rank 1 has '2'");
  const Thrown other = thrown_by([&] { world.agree(world.rank() == 1 ? "mesh" : "plan", "x"); });
  EXPECT_NE(other.text.find("rank 1 on mesh"), std::string::npos) << other.text;
  world.agree("plan", "again");
  EXPECT_EQ(world.peek("stop"), std::nullopt);
  world.agree("nobody posted yet", "");
  if (world.rank() == 0) world.post("stop", "7");
  world.agree("posted", "");
  EXPECT_EQ(world.peek("stop"), "7");
  // The texts have different lengths, and rank 0 has none.
  std::vector<std::string> texts;
  for (int32_t r = 0; r < world.size(); ++r) texts.emplace_back(r, 'x');
  EXPECT_EQ(world.gather_texts(texts[world.rank()]), texts);
  EXPECT_EQ(world.gather_texts(""), std::vector<std::string>(world.size()));
}

// The last rank comes when the timeout of every other operation has passed.
inline void await_a_slow_rank(World& world) {
  for (int round = 0; round < 2; ++round) {
    if (round == 0 && world.rank() == world.size() - 1)
      std::this_thread::sleep_for(world.timeout() + std::chrono::seconds(1));
    world.await_all("a slow rank");
  }
  world.agree("plan", "abc");
}

// A rank that will never come is lost or ends this wait.
inline void await_a_rank_that_leaves(World& world) {
  if (world.rank() == 1) return;
  EXPECT_EQ(thrown_by([&] { world.await_all("a rank that leaves"); }).code, YOKE_UNAVAILABLE);
}

// A shard may be a part of the tensor from which it is scattered and into which it is gathered.
inline void scatter_and_gather_in_place(World& world) {
  world.set_mesh(Mesh({1, 1, world.size(), 1, 1}));
  Communicator& comm = world.comm(YOKE_AXIS_BIT(YOKE_DP_SHARD), "flat");
  for (const int64_t n : {4, 50000}) {
    at::Tensor ramp = at::arange(n * world.size(), at::kFloat).remainder(100);
    at::Tensor flat = ramp * static_cast<float>(world.rank() + 1);
    at::Tensor shard = flat.narrow(0, world.rank() * n, n);
    comm.reduce_scatter(shard, flat, YOKE_SUM)->wait();
    comm.all_gather(flat, shard)->wait();
    const int ranks = world.size();
    EXPECT_TRUE(at::equal(flat, ramp * static_cast<float>(ranks * (ranks + 1) / 2))) << n;
  }
}

// The output may have any shape with the right number of elements, for small and large parts.
inline void gather_in_any_shape(World& world) {
  world.set_mesh(Mesh({1, 1, world.size(), 1, 1}));
  Communicator& comm = world.comm(YOKE_AXIS_BIT(YOKE_DP_SHARD), "shapes");
  for (const int64_t n : {3, 50000}) {
    at::Tensor mine = at::full({2, n}, static_cast<float>(world.rank()));
    at::Tensor all = at::empty({world.size(), 2, n});
    comm.process_group()->_allgather_base(all, mine)->wait();
    for (int r = 0; r < world.size(); ++r)
      EXPECT_TRUE(at::equal(all[r], at::full({2, n}, static_cast<float>(r)))) << n;
  }
}

// Uses the ProcessGroup directly, as a LibTorch plugin does. Such collectives are also counted.
inline void use_process_group(World& world) {
  world.set_mesh(Mesh({1, world.size(), 1, 1, 1}));
  Communicator& comm = world.comm(YOKE_AXIS_BIT(YOKE_DP_REPLICATE), "grads");
  c10d::ProcessGroup* group = comm.process_group();
  std::vector<at::Tensor> ones{at::ones({5})};
  auto future = group->allreduce(ones)->getFuture();
  future->wait();
  ASSERT_FALSE(future->hasError()) << future->tryRetrieveErrorMessage();
  EXPECT_EQ(future->value().toTensorVector()[0][4].item<float>(), static_cast<float>(world.size()));
  at::Tensor part = at::full({2}, static_cast<float>(world.rank())),
             whole = at::empty({2 * world.size()});
  group->_allgather_base(whole, part)->wait();
  EXPECT_EQ(whole[2 * world.size() - 1].item<float>(), static_cast<float>(world.size() - 1));
  at::Tensor in = at::ones({world.size(), 3}), out = at::empty({3});
  auto scattered = group->_reduce_scatter_base(out, in)->getFuture();
  scattered->wait();
  EXPECT_EQ(out[2].item<float>(), static_cast<float>(world.size()));
  std::vector<std::vector<at::Tensor>> outs(1);
  for (int r = 0; r < world.size(); ++r) outs[0].push_back(at::empty({2}));
  std::vector<at::Tensor> ins{part};
  group->allgather(outs, ins)->wait();
  EXPECT_EQ(outs[0].back()[1].item<float>(), static_cast<float>(world.size() - 1));
  at::Tensor swapped = at::empty({world.size()});
  at::Tensor sent = at::arange(world.size(), at::kFloat) + 10.0f * static_cast<float>(world.rank());
  std::vector<int64_t> equal;
  group->alltoall_base(swapped, sent, equal, equal)->wait();
  EXPECT_EQ(swapped[world.size() - 1].item<float>(),
            10.0f * static_cast<float>(world.size() - 1) + static_cast<float>(world.rank()));
  // Each rank sends to the next one.
  std::vector<at::Tensor> mine{at::full({4}, static_cast<float>(world.rank()))},
      theirs{at::empty({4})};
  auto send = group->send(mine, (world.rank() + 1) % world.size(), 5);
  auto recv = group->recv(theirs, (world.rank() + world.size() - 1) % world.size(), 5);
  recv->wait();
  send->wait();
  EXPECT_EQ(theirs[0][3].item<float>(),
            static_cast<float>((world.rank() + world.size() - 1) % world.size()));
  group->barrier()->wait();
  const int64_t n = world.size();
  const CommCount count = world.counts().at("dp_replicate");
  EXPECT_EQ(count.calls, 8);
  EXPECT_EQ(count.bytes, 5 * 4 + 2 * n * 4 + 3 * n * 4 + 2 * n * 4 + n * 4 + 16 + 16);
  world.reset_counts();  // resets counts(), but not counts_by_operation()
  EXPECT_EQ(world.counts().at("dp_replicate").calls, 0);
  int64_t calls = 0, bytes = 0;
  for (const OperationCount& operation : world.counts_by_operation()) {
    EXPECT_EQ(operation.axes, "dp_replicate");
    if (operation.operation == "all_to_all") {
      EXPECT_EQ(operation.dtype, "fp32");
      EXPECT_EQ(operation.count.bytes, n * 4);
    }
    calls += operation.count.calls;
    bytes += operation.count.bytes;
  }
  EXPECT_EQ(calls, count.calls);
  EXPECT_EQ(bytes, count.bytes);
}

}  // namespace yoke::test
