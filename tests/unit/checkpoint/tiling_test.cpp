#include "core/checkpoint/tiling.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/checkpoint/fake_state.hpp"

namespace yoke {
namespace {

using ::testing::HasSubstr;

std::string tiling_error(std::vector<int64_t> shape, const std::vector<StridedSpan>& pieces) {
  StoredTensor tensor;
  tensor.name = "w";
  tensor.kind = "param";
  tensor.dtype = YOKE_F32;
  tensor.shape = std::move(shape);
  int32_t rank = 0;
  for (const StridedSpan& r : pieces) tensor.pieces.push_back({r, {}, rank++});
  std::vector<StoredTensor> tensors = {tensor};
  return error_of([&] { check_tiling(&tensors, YOKE_INTERNAL, "pieces: "); }).text;
}

std::string flat_error(std::vector<int64_t> shape,
                       const std::vector<std::pair<int64_t, int64_t>>& pieces) {
  std::vector<StridedSpan> spans;
  for (const auto& [begin, count] : pieces) spans.push_back(StridedSpan::flat(begin, count));
  return tiling_error(std::move(shape), spans);
}

TEST(CheckTiling, AcceptsPiecesInAnyOrder) {
  EXPECT_EQ(flat_error({2, 5}, {{7, 3}, {0, 4}, {4, 3}}), "");
  EXPECT_EQ(flat_error({}, {{0, 1}}), "");
  EXPECT_EQ(flat_error({0, 5}, {}), "");
}

TEST(CheckTiling, NamesEveryKindOfFault) {
  EXPECT_EQ(flat_error({10}, {}), "pieces: tensor 'w' (param): elements [0, 10) are in no piece");
  EXPECT_EQ(flat_error({10}, {{2, 8}}),
            "pieces: tensor 'w' (param): elements [0, 2) are in no piece");
  EXPECT_EQ(flat_error({10}, {{0, 4}, {5, 5}}),
            "pieces: tensor 'w' (param): elements [4, 5) are in no piece");
  EXPECT_EQ(flat_error({10}, {{0, 9}}),
            "pieces: tensor 'w' (param): elements [9, 10) are in no piece");
  EXPECT_THAT(flat_error({10}, {{0, 10}, {0, 10}}),
              HasSubstr("elements [0, 10) are in two pieces"));
  EXPECT_THAT(flat_error({10}, {{0, 10}, {3, 1}}),
              HasSubstr("elements [3, 4) are in two pieces: [0, 10) (from rank 0) and [3, 4) (from "
                        "rank 1)"));
  EXPECT_THAT(flat_error({}, {{0, 1}, {0, 1}}), HasSubstr("two pieces"));
}

TEST(CheckTiling, AcceptsColumnsAndTheirShards) {
  EXPECT_EQ(tiling_error({4, 6}, {{0, 8, 2, 6}, {2, 16, 4, 6}}), "");
  // Columns [2, 5) are split into five and seven elements; the seven are a flat piece of one
  // element and a strided piece of six.
  EXPECT_EQ(tiling_error({4, 6},
                         {{0, 8, 2, 6}, {2, 5, 3, 6}, {10, 1, 1, 1}, {14, 6, 3, 6}, {5, 4, 1, 6}}),
            "");
  // The first piece has spans that cross the end of a row; the last two fill the corners.
  EXPECT_EQ(tiling_error({4, 6}, {{4, 12, 4, 6}, {2, 8, 2, 6}, {0, 2, 2, 2}, {22, 2, 2, 2}}), "");
}

TEST(CheckTiling, NamesFaultsOfColumns) {
  EXPECT_EQ(tiling_error({4, 6}, {{0, 8, 2, 6}, {3, 12, 3, 6}}),
            "pieces: tensor 'w' (param): elements [2, 3) are in no piece");
  EXPECT_EQ(tiling_error({4, 6}, {{0, 8, 2, 6}, {2, 8, 4, 6}}),
            "pieces: tensor 'w' (param): elements [14, 18) are in no piece");
  EXPECT_EQ(
      tiling_error({4, 6}, {{0, 12, 3, 6}, {2, 16, 4, 6}}),
      "pieces: tensor 'w' (param): elements [2, 3) are in two pieces: [0, 21) in runs of 3 at "
      "stride 6 (from rank 0) and [2, 24) in runs of 4 at stride 6 (from rank 1)");
  EXPECT_THAT(tiling_error({4, 6}, {{0, 8, 2, 6}, {2, 8, 2, 12}}), HasSubstr("different strides"));
}

// Compares with a count of every element, for random tilings, some of which are damaged.
TEST(CheckTiling, AgreesWithCounting) {
  std::mt19937_64 random(3);
  int good = 0, bad = 0;
  for (int n = 0; n < 4000; ++n) {
    const int64_t numel = 1 + static_cast<int64_t>(random() % 60);
    std::vector<StridedSpan> pieces = random_strips(numel, random_divisor(numel, random), random);
    if (random() % 2 == 0) {
      StridedSpan& victim = pieces[random() % pieces.size()];
      switch (random() % 4) {
        case 0:
          victim.begin += 1;
          break;
        case 1:
          victim.begin -= 1;
          break;
        case 2:
          victim = pieces[random() % pieces.size()];
          break;
        default:
          victim =
              victim.is_flat()
                  ? StridedSpan::flat(victim.begin, victim.count / 2)
                  : StridedSpan{victim.begin, victim.count - 1, victim.run, victim.stride}.joined();
      }
      if (victim.count == 0 || !victim.fault(numel).empty()) continue;
    }
    std::vector<int> times(static_cast<size_t>(numel));
    for (const StridedSpan& r : pieces) {
      for (int64_t i = 0; i < r.count; ++i) ++times[r.element(i)];
    }
    const bool once = std::all_of(times.begin(), times.end(), [](int t) { return t == 1; });
    const std::string error = tiling_error({numel}, pieces);
    ASSERT_EQ(error.empty(), once) << "case " << n << ": " << error;
    ++(once ? good : bad);
  }
  EXPECT_GT(good, 500);
  EXPECT_GT(bad, 500);
}

}  // namespace
}  // namespace yoke
