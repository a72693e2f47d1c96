// Tests for the transports of ranks that share memory, threads or processes, like those of
// comm_programs.hpp.
#pragma once

#include <cstring>

#include "tests/ranks/comm_programs.hpp"

namespace yoke::test {

// A sum has the same bits on every rank: those of adding in rank order.
inline void sum_in_rank_order(World& world) {
  constexpr int64_t kCount = 100003;
  const auto input = [](int rank) {
    at::Tensor t = at::empty({kCount});
    std::mt19937 random(rank + 1);
    std::normal_distribution<float> normal;
    float* p = t.data_ptr<float>();
    for (int64_t i = 0; i < kCount; ++i) p[i] = normal(random);
    return t;
  };
  std::vector<float> expected(kCount, 0.0f);
  for (int r = 0; r < world.size(); ++r) {
    const at::Tensor t = input(r);
    const float* p = t.const_data_ptr<float>();
    for (int64_t i = 0; i < kCount; ++i) expected[i] = r == 0 ? p[i] : expected[i] + p[i];
  }
  world.set_mesh(Mesh({1, 1, world.size(), 1, 1}));
  at::Tensor t = input(world.rank());
  world.comm(YOKE_ALL_AXES, "sum").all_reduce(t, YOKE_SUM)->wait();
  EXPECT_EQ(std::memcmp(t.data_ptr(), expected.data(), kCount * sizeof(float)), 0);
}

// Parts of different sizes, and parts that the ranks do not agree on.
inline void give_uneven_parts(World& world) {
  world.set_mesh(Mesh({1, 1, 2, 1, 1}));
  auto* group = world.comm(YOKE_ALL_AXES, "experts").process_group();
  const bool first = world.rank() == 0;
  at::Tensor in = at::arange(4, at::kFloat) + (first ? 0 : 10);
  at::Tensor out = at::empty({first ? 3 : 5});
  std::vector<int64_t> in_splits = first ? std::vector<int64_t>{1, 3} : std::vector<int64_t>{2, 2};
  std::vector<int64_t> out_splits = first ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{3, 2};
  group->alltoall_base(out, in, out_splits, in_splits)->wait();
  EXPECT_TRUE(at::equal(
      out, first ? at::tensor({0.f, 10.f, 11.f}) : at::tensor({1.f, 2.f, 3.f, 12.f, 13.f})));
  for (const std::vector<int64_t>& wrong : {std::vector<int64_t>{-1, 5}, {4}, {1, 1, 2}}) {
    std::vector<int64_t> splits = wrong;
    EXPECT_EQ(thrown_by([&] { group->alltoall_base(out, in, out_splits, splits); }).code,
              YOKE_INVALID_ARGUMENT);
  }
  out_splits = {1, 1};
  out = at::empty({2});
  const Thrown thrown =
      thrown_by([&] { group->alltoall_base(out, in, out_splits, in_splits)->wait(); });
  EXPECT_EQ(thrown.code, YOKE_FAILED_PRECONDITION);
  EXPECT_NE(thrown.text.find("rank 0 sends 12 bytes to rank 1, which expects 4"), std::string::npos)
      << thrown.text;
}

}  // namespace yoke::test
