// Tests of messages and of exchanges of parts through the sdk, for every transport: yoke/comm.hpp
// on the services of the host, and the same through Communicator.
#pragma once

#include <vector>

#include "core/backend/services.hpp"
#include "tests/ranks/comm_programs.hpp"
#include "yoke/comm.hpp"

namespace yoke::test {

constexpr int32_t kExchangedDtypes[] = {YOKE_F64, YOKE_F32, YOKE_BF16, YOKE_I64, YOKE_I32, YOKE_U8};
// The last one is larger than any buffer of a transport.
constexpr int64_t kMessageSizes[] = {1, 7, 0, 300'000};

// Memory of `count` elements. Element i has the bytes of seed + i, so that every dtype can be
// compared.
struct Buffer {
  Buffer(int64_t count, int32_t of_dtype, int seed)
      : bytes(static_cast<size_t>(count * item_size(of_dtype))), dtype(of_dtype), size(count) {
    for (size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<char>(seed * 31 + static_cast<int>(i) % 101);
  }
  Span span() { return {bytes.data(), size, dtype}; }
  bool operator==(const Buffer&) const = default;
  std::vector<char> bytes;
  int32_t dtype;
  int64_t size;
};

// Three messages to the next rank are in flight at once, and arrive in their order.
inline void pass_on_messages(const Comm& comm) {
  const int n = comm.size(), rank = comm.rank();
  const int next = (rank + 1) % n, previous = (rank + n - 1) % n;
  for (const int32_t dtype : kExchangedDtypes) {
    for (const int64_t size : kMessageSizes) {
      std::vector<Buffer> sent, received;
      for (int k = 0; k < 3; ++k) {
        sent.emplace_back(size, dtype, 10 * rank + k);
        received.emplace_back(size, dtype, 99);
      }
      std::vector<Work> works;
      for (Buffer& buffer : received) works.push_back(comm.recv(buffer.span(), previous));
      for (Buffer& buffer : sent) works.push_back(comm.send(buffer.span(), next));
      for (Work& work : works) work.wait();
      for (int k = 0; k < 3; ++k)
        EXPECT_EQ(received[static_cast<size_t>(k)], Buffer(size, dtype, 10 * previous + k));
    }
  }
}

// Rank 0 sends to all others and waits for each message: no other rank sends anything.
inline void hand_out(const Comm& comm) {
  Buffer buffer(1000, YOKE_F32, comm.rank());
  for (int to = 1; to < comm.size() && comm.rank() == 0; ++to) comm.send(buffer.span(), to).wait();
  if (comm.rank() == 0) return;
  comm.recv(buffer.span(), 0).wait();
  EXPECT_EQ(buffer, Buffer(1000, YOKE_F32, 0));
}

// The plain version: the part that rank `from` sends to rank `to`, and its size.
inline int64_t part_size(int from, int to, int round) {
  return (from * 5 + to * 3 + round) % 4 == 0 ? 0 : (from + 2 * to + round) % 5 * 1000 + 3;
}

inline void exchange_parts(const Comm& comm) {
  const int n = comm.size(), rank = comm.rank();
  for (int round = 0; round < 8; ++round) {
    const int32_t dtype =
        kExchangedDtypes[static_cast<size_t>(round) % std::size(kExchangedDtypes)];
    std::vector<int64_t> out_counts, in_counts;
    std::vector<char> in, expected;
    int64_t in_total = 0, out_total = 0;
    for (int peer = 0; peer < n; ++peer) {
      in_counts.push_back(part_size(rank, peer, round));
      out_counts.push_back(part_size(peer, rank, round));
      const Buffer mine(in_counts.back(), dtype, rank * 16 + peer);
      const Buffer theirs(out_counts.back(), dtype, peer * 16 + rank);
      in.insert(in.end(), mine.bytes.begin(), mine.bytes.end());
      expected.insert(expected.end(), theirs.bytes.begin(), theirs.bytes.end());
      in_total += in_counts.back();
      out_total += out_counts.back();
    }
    std::vector<char> out(expected.size(), 'x');
    comm.all_to_all({out.data(), out_total, dtype},
                    out_counts.data(),
                    ConstSpan(in.data(), in_total, dtype),
                    in_counts.data())
        .wait();
    EXPECT_EQ(out, expected) << "round " << round;
  }
}

// Without counts the parts are equal. A shift moves everything one rank on.
inline void exchange_equal_parts(const Comm& comm) {
  const int n = comm.size(), rank = comm.rank();
  std::vector<double> in, out(static_cast<size_t>(2 * n)), expected;
  for (int peer = 0; peer < n; ++peer) {
    for (int i = 0; i < 2; ++i) {
      in.push_back(100 * rank + 10 * peer + i);
      expected.push_back(100 * peer + 10 * rank + i);
    }
  }
  const int64_t count = 2 * n;
  comm.all_to_all(
          {out.data(), count, YOKE_F64}, nullptr, ConstSpan(in.data(), count, YOKE_F64), nullptr)
      .wait();
  EXPECT_EQ(out, expected);
  double own = rank, before = -1;
  comm.shift({&before, 1, YOKE_F64}, ConstSpan(&own, 1, YOKE_F64)).wait();
  EXPECT_EQ(before, (rank + n - 1) % n);
}

inline void exchange_through_the_sdk(World& world) {
  world.set_mesh(Mesh({world.size(), 1, 1, 1, 1}));
  HostServices services(
      world, [](int32_t, const std::string&) {}, nullptr);
  const Comm comm(*services.host(), YOKE_AXIS_BIT(YOKE_PP), "exchange");
  pass_on_messages(comm);
  hand_out(comm);
  exchange_parts(comm);
  exchange_equal_parts(comm);
  EXPECT_NO_THROW(world.check_collectives());
}

// ---- Bad input ----

// Every rank makes the same mistake, and each gets the error before anything is sent. Afterwards
// the communicator still works.
inline void refuse_wrong_exchanges(World& world) {
  world.set_mesh(Mesh({world.size(), 1, 1, 1, 1}));
  Communicator& comm = world.comm(YOKE_AXIS_BIT(YOKE_PP), "exchange");
  const int32_t n = comm.size(), rank = comm.rank();
  const at::Tensor four = at::zeros({4}), six = at::zeros({6}), longs = at::zeros({4}, at::kLong);
  const at::Tensor strided = at::zeros({4, 4}).t().narrow(0, 0, 2);
  const auto refused = [&](const std::string& text, auto&& f) {
    const Thrown thrown = thrown_by(f);
    EXPECT_EQ(thrown.code, YOKE_INVALID_ARGUMENT) << text;
    EXPECT_EQ(thrown.text, text);
  };
  const std::string ranks = concat("; allowed: 0 to ", n - 1, ", but not this rank, ", rank) +
                            " (ranks of the communicator)";
  for (const int32_t peer : {n, -1, rank}) {
    refused(concat("send: rank ", peer) + ranks, [&] { comm.send(four, peer)->wait(); });
    refused(concat("recv: rank ", peer) + ranks, [&] { comm.recv(four, peer)->wait(); });
  }
  const int32_t next = (rank + 1) % n;
  refused("send: the tensor is not compact row-major; copy it first",
          [&] { comm.send(strided, next)->wait(); });
  refused("recv: the tensor is not compact row-major; copy it first",
          [&] { comm.recv(strided, next)->wait(); });
  const auto exchange = [&](const at::Tensor& out,
                            std::vector<int64_t> out_counts,
                            const at::Tensor& in,
                            std::vector<int64_t> in_counts) {
    return [=, &comm] { comm.all_to_all(out, out_counts, in, in_counts)->wait(); };
  };
  std::vector<int64_t> counts(static_cast<size_t>(n), 0), negative = counts, missing = counts;
  counts[0] = missing[0] = 4;
  negative[0] = -1;
  negative[1] = 5;
  missing[0] = 3;
  refused("all_to_all: in: the parts have 3 elements, the tensor 4",
          exchange(four, counts, four, missing));
  refused("all_to_all: out: the parts have 4 elements, the tensor 6",
          exchange(six, counts, four, counts));
  refused("all_to_all: in: a part has -1 elements", exchange(four, counts, four, negative));
  refused("all_to_all: out has the dtype int64, in fp32; allowed: one dtype",
          exchange(longs, counts, four, counts));
  const at::Tensor odd = at::zeros({n + 1});
  refused(concat("all_to_all: out: ", n + 1, " elements cannot be divided into ", n) +
              " equal parts; pass the counts of the parts",
          exchange(odd, {}, odd, {}));
  std::vector<int64_t> few{4};
  refused(concat("all_to_all: in: 1 counts; allowed: ", n, ", one for each rank"),
          exchange(four, counts, four, few));
  const at::Tensor one = at::ones({1});
  comm.all_reduce(one, YOKE_SUM)->wait();
  EXPECT_EQ(one.item<float>(), static_cast<float>(n));
}

// What one rank sends is not what the other expects.
inline void disagree_about_parts(World& world) {
  world.set_mesh(Mesh({world.size(), 1, 1, 1, 1}));
  Communicator& comm = world.comm(YOKE_AXIS_BIT(YOKE_PP), "exchange");
  std::vector<int64_t> sent{1, 2}, expected{1, world.rank() == 0 ? 2 : 3};
  if (world.rank() == 1) expected = {3, 2};
  const at::Tensor in = at::zeros({3});
  const at::Tensor out = at::zeros({expected[0] + expected[1]});
  const Thrown thrown = thrown_by([&] { comm.all_to_all(out, expected, in, sent)->wait(); });
  EXPECT_NE(thrown.code, YOKE_OK) << "rank " << world.rank();
}

}  // namespace yoke::test
