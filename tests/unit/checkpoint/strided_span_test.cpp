#include "core/checkpoint/strided_span.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <tuple>
#include <vector>

namespace yoke {
namespace {

using ::testing::HasSubstr;

std::vector<int64_t> elements(const StridedSpan& r) {
  std::vector<int64_t> all;
  for (int64_t i = 0; i < r.count; ++i) all.push_back(r.element(i));
  return all;
}

// Returns a part of a tensor of 60 elements, contiguous or strided.
StridedSpan random_span(std::mt19937_64& random) {
  for (;;) {
    const auto number = [&](int64_t end) { return static_cast<int64_t>(random() % end); };
    const StridedSpan r{number(60), number(61), 1 + number(12), 1 + number(20)};
    if (r.fault(60).empty()) return r.joined();
  }
}

TEST(StridedSpan, HasTheElementsOfTheContract) {
  const StridedSpan columns{4, 7, 3, 16};
  EXPECT_EQ(elements(columns), (std::vector<int64_t>{4, 5, 6, 20, 21, 22, 36}));
  EXPECT_EQ(columns.end(), 37);
  EXPECT_EQ(elements(StridedSpan::flat(4, 3)), (std::vector<int64_t>{4, 5, 6}));
  EXPECT_EQ(StridedSpan::flat(4, 0).end(), 4);
}

TEST(StridedSpan, IsAFlatRangeWhereItsSpansTouch) {
  for (const StridedSpan& r :
       {StridedSpan{4, 12, 12, 0}, StridedSpan{4, 12, 20, 60}, StridedSpan{4, 12, 3, 3}}) {
    EXPECT_EQ(r.fault(60), "");
    EXPECT_TRUE(r.joined().is_flat());
    EXPECT_EQ(elements(r.joined()).back(), 15);
  }
  EXPECT_FALSE((StridedSpan{4, 12, 3, 4}.joined().is_flat()));
}

TEST(StridedSpan, FindsAnElementOrTheNextOne) {
  std::mt19937_64 random(1);
  for (int n = 0; n < 2000; ++n) {
    const StridedSpan r = random_span(random);
    const std::vector<int64_t> all = elements(r);
    for (int64_t e = 0; e <= 61; ++e) {
      const auto at = std::lower_bound(all.begin(), all.end(), e);
      ASSERT_EQ(r.first_from(e), at - all.begin()) << r.text() << ", from " << e;
    }
  }
}

TEST(StridedSpan, SharesWithAnotherJustWhatIsInBoth) {
  std::mt19937_64 random(2);
  using Shared = std::tuple<int64_t, int64_t, int64_t>;  // i, j, element
  for (int n = 0; n < 3000; ++n) {
    const StridedSpan a = random_span(random), b = random_span(random);
    const int64_t from = a.count / 3, to = a.count - a.count / 4;
    std::vector<Shared> expected, found;
    for (int64_t i = from; i < to; ++i) {
      for (int64_t j = 0; j < b.count; ++j) {
        if (a.element(i) == b.element(j)) expected.emplace_back(i, j, a.element(i));
      }
    }
    for_each_common(a, from, to, b, [&](int64_t i, int64_t j, int64_t m) {
      for (int64_t k = 0; k < m; ++k) found.emplace_back(i + k, j + k, a.element(i) + k);
    });
    ASSERT_EQ(found, expected) << a.text() << " and " << b.text();
  }
}

TEST(StridedSpan, ReportsWhatIsWrongWithNumbersFromOutside) {
  const auto huge = INT64_MAX;
  EXPECT_THAT((StridedSpan{-1, 2, 2, 0}.fault(40)),
              HasSubstr("2 elements from -1 is not inside the 40"));
  EXPECT_THAT((StridedSpan{1, huge, 1, 8}.fault(40)), HasSubstr("is not inside"));
  EXPECT_THAT((StridedSpan{0, 4, 0, 8}.fault(40)),
              HasSubstr("runs of 0 elements; allowed: at least 1"));
  EXPECT_THAT((StridedSpan{0, 9, 3, 2}.fault(40)), HasSubstr("runs of 3 elements at stride 2"));
  EXPECT_THAT((StridedSpan{0, 9, 3, 7}.fault(40)), HasSubstr("divides the 40 elements"));
  EXPECT_THAT((StridedSpan{0, 9, 3, huge}.fault(40)), HasSubstr("stride"));
  EXPECT_THAT((StridedSpan{0, 16, 3, 8}.fault(40)),
              HasSubstr("is not inside the 40 elements of its tensor, in runs"));
  EXPECT_THAT((StridedSpan{6, 15, 3, 8}.fault(40)), HasSubstr("is not inside"));
  EXPECT_EQ((StridedSpan{5, 15, 3, 8}.fault(40)), "");
  EXPECT_EQ((StridedSpan{7, 5, 1, 8}.fault(40)), "");
  EXPECT_EQ((StridedSpan{40, 0, 0, 0}.fault(40)), "");
}

}  // namespace
}  // namespace yoke
