#include "core/comm/contribution.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

namespace yoke {
namespace {

// Small copies and large ones, which do not go through the caches, at all alignments. The bytes
// around the target stay as they are.
TEST(CopyBytes, CopiesExactlyItsBytes) {
  constexpr int64_t kLarge = 4 << 20;
  const std::string source = [] {
    std::string bytes(kLarge + 1000, '\0');
    std::mt19937 random(1);
    for (char& byte : bytes) byte = static_cast<char>('a' + random() % 20);
    return bytes;
  }();
  for (const int64_t bytes :
       {int64_t{0}, int64_t{1}, int64_t{777}, kLarge - 1, kLarge, kLarge + 130}) {
    for (const int64_t shift : {0, 1, 16, 63}) {
      std::string target(kLarge + 1000, '.');
      const int64_t from = (shift * 7) % 64, to = 64 + shift;
      copy_bytes(target.data() + to, source.data() + from, bytes);
      EXPECT_EQ(target.compare(to, bytes, source, from, bytes), 0) << bytes << " at " << shift;
      EXPECT_EQ(target.find_first_not_of('.'), bytes == 0 ? std::string::npos : to);
      EXPECT_EQ(target.find_last_not_of('.'),
                bytes == 0 ? std::string::npos : static_cast<size_t>(to + bytes - 1));
    }
  }
  copy_bytes(nullptr, nullptr, 0);
}

Contribution floats(Collective op, std::vector<float>& in, std::vector<float>& out, int64_t count) {
  Contribution c;
  c.signature = {op, static_cast<int32_t>(at::kFloat), count, 0, 1};
  c.item_size = 4;
  c.in = reinterpret_cast<const char*>(in.data());
  c.out = reinterpret_cast<char*>(out.data());
  return c;
}

TEST(Receive, WritesWhatTheRankReceivesAndNothingElse) {
  std::vector<float> in0{1, 2, 3, 4}, in1{10, 20, 30, 40}, out0(4, -1), out1(4, -1);
  const auto both = [&](Collective op, int64_t count, int64_t detail) {
    std::vector<Contribution> all{floats(op, in0, out0, count), floats(op, in1, out1, count)};
    for (Contribution& c : all) c.signature.detail = detail;
    out0.assign(4, -1);
    out1.assign(4, -1);
    receive(all, 1);
    EXPECT_EQ(out0, std::vector<float>(4, -1)) << "the output of another rank";
  };
  using Values = std::vector<float>;
  both(Collective::kAllReduce, 4, c10d::ReduceOp::SUM);
  EXPECT_EQ(out1, (Values{11, 22, 33, 44}));
  both(Collective::kReduceScatter, 4, c10d::ReduceOp::MAX);
  EXPECT_EQ(out1, (Values{30, 40, -1, -1}));
  both(Collective::kAllGather, 4, 0);
  EXPECT_EQ(out1, (Values{1, 2, 10, 20}));
  both(Collective::kBroadcast, 3, 0);
  EXPECT_EQ(out1, (Values{1, 2, 3, -1}));
  both(Collective::kBarrier, 0, 0);
  EXPECT_EQ(out1, Values(4, -1));
}

TEST(Difference, ComparesAllSizesOfAnAllToAll) {
  std::vector<float> data(4);
  std::vector<Contribution> all(2, floats(Collective::kAllToAll, data, data, -1));
  all[0].in_offsets = {0, 4, 8};
  all[0].out_offsets = {0, 4, 12};
  all[1].in_offsets = {0, 8, 16};
  all[1].out_offsets = {0, 4, 12};
  EXPECT_EQ(difference(all, {3, 5}), "");
  all[1].out_offsets = {0, 8, 16};
  EXPECT_EQ(difference(all, {3, 5}), "all_to_all: rank 3 sends 4 bytes to rank 5, which expects 8");
}

TEST(Contribution, PutsStagedResultsIntoStridedTensors) {
  at::Tensor strided = at::zeros({2, 3}).t(), result = at::arange(6, at::kFloat).view({3, 2});
  Contribution c;
  c.staged.emplace_back(strided, result);
  c.keep.push_back(strided);
  c.finish();
  EXPECT_TRUE(at::equal(strided, result));
  EXPECT_TRUE(c.keep.empty() && c.staged.empty());
}

}  // namespace
}  // namespace yoke
