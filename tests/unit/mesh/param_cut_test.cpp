#include "sdk/mesh/schedule/param_cut.hpp"

#include <gtest/gtest.h>

#include <random>

namespace yoke::mesh {
namespace {

TEST(ParamCut, WithoutOneThePartIsTheWhole) {
  const auto spans = ParamCut{}.spans(3, 10);
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].begin, 3);
  EXPECT_EQ(spans[0].run, 10);
  EXPECT_TRUE(ParamCut{}.spans(3, 0).empty());
}

TEST(ParamCut, RowsAreOneRun) {
  const auto spans = ParamCut::along({8, 5}, 0, 1, 2).spans(0, 20);
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].begin, 20);
  EXPECT_EQ(spans[0].stride, 0);
}

TEST(ParamCut, ColumnsAreRunsAtAStride) {
  const auto spans = ParamCut::along({3, 8}, 1, 1, 2).spans(2, 10);
  ASSERT_EQ(spans.size(), 2u) << "the rest of a row, then whole rows";
  EXPECT_EQ(spans[0].begin, 6);
  EXPECT_EQ(spans[0].count, 2);
  EXPECT_EQ(spans[1].begin, 12);
  EXPECT_EQ(spans[1].count, 8);
  EXPECT_EQ(spans[1].run, 4);
  EXPECT_EQ(spans[1].stride, 8);
}

// Every element of the whole tensor must be in the spans of exactly one rank, at its position in
// that rank's part.
TEST(ParamCut, ThePartsOfAllRanksTileTheWholeHoweverTheyAreDividedFurther) {
  std::mt19937 random(7);
  const auto pick = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  for (int i = 0; i < 500; ++i) {
    std::vector<int64_t> shape;
    for (int64_t d = pick(1, 3); d > 0; --d) shape.push_back(pick(1, 5));
    const int64_t dim = pick(0, static_cast<int64_t>(shape.size()) - 1);
    const int ranks = static_cast<int>(pick(1, 4));
    shape[dim] *= ranks;
    int64_t whole = 1, inner = 1;
    for (const int64_t n : shape) whole *= n;
    for (size_t d = dim + 1; d < shape.size(); ++d) inner *= shape[d];
    std::vector<int> seen(whole, 0);
    for (int rank = 0; rank < ranks; ++rank) {
      const ParamCut cut = ParamCut::along(shape, dim, rank, ranks);
      const int64_t part = whole / ranks, middle = pick(0, part);
      for (const auto& [begin, end] : {std::pair{int64_t{0}, middle}, std::pair{middle, part}}) {
        const auto pieces = cut.spans(begin, end - begin);
        ASSERT_LE(pieces.size(), 2u);
        int64_t next = begin;
        for (const ParamSpan& span : pieces) {
          ASSERT_EQ(span.local, next);
          next += span.count;
          for (int64_t k = 0; k < span.count; ++k) {
            const int64_t element = span.begin + k / span.run * span.stride + k % span.run;
            ++seen[element];
            // By definition of the cut, an element has the same indices in the part, except for an
            // offset along dim.
            const int64_t local = span.local + k, width = shape[dim] / ranks;
            const int64_t row = local / (width * inner), at = local / inner % width;
            ASSERT_EQ(element, (row * shape[dim] + rank * width + at) * inner + local % inner);
          }
        }
        ASSERT_EQ(next, end);
      }
    }
    for (const int n : seen) ASSERT_EQ(n, 1);
  }
}

}  // namespace
}  // namespace yoke::mesh
