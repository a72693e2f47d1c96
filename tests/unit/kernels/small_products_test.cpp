#include "core/kernels/small_products.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <thread>
#include <vector>

namespace yoke {
namespace {

// Where the numbers of a matrix lie.
enum class Layout { kRows, kColumns, kRowsWithGaps, kColumnsWithGaps };
using enum Layout;
constexpr std::array kLayouts{kRows, kColumns, kRowsWithGaps, kColumnsWithGaps};

bool has_rows(Layout layout) {
  return layout == kRows || layout == kRowsWithGaps;
}

at::Tensor matrix(int64_t rows, int64_t columns, Layout layout = kRows) {
  if (!has_rows(layout))
    return matrix(columns, rows, layout == kColumns ? kRows : kRowsWithGaps).t();
  const int64_t gap = layout == kRowsWithGaps ? 3 : 0;
  return at::randn({rows, columns + gap}).narrow(1, gap, columns);
}

TEST(SmallProducts, AreThoseOfFp64ForAllShapesAndLayouts) {
  at::manual_seed(1);
  for (const auto& [m, k, n] : std::vector<std::array<int64_t, 3>>{{8, 8, 8},
                                                                   {64, 64, 64},
                                                                   {512, 64, 96},
                                                                   {200, 40, 30},
                                                                   {30, 40, 200},
                                                                   {33, 1024, 65},
                                                                   {1024, 17, 129},
                                                                   {9, 100, 1024}}) {
    for (const Layout first : kLayouts) {
      for (const Layout second : kLayouts) {
        const at::Tensor a = matrix(m, k, first), b = matrix(k, n, second);
        ASSERT_EQ(ops::is_small_product(a, b), has_rows(first) || has_rows(second));
        if (!ops::is_small_product(a, b)) continue;
        const at::Tensor product = at::mm(a.to(at::kDouble), b.to(at::kDouble));
        const double bound = 1e-6 * static_cast<double>(k);
        at::Tensor out = at::full({m, n}, NAN);
        ops::multiply_small(a, b, out, /*add=*/false);
        EXPECT_LT((out - product).abs().max().item<double>(), bound) << out.sizes() << k;
        const at::Tensor before = at::randn({m, n});
        out.copy_(before);
        ops::multiply_small(a, b, out, /*add=*/true);
        EXPECT_LT((out - before - product).abs().max().item<double>(), bound) << out.sizes() << k;
      }
    }
  }
}

TEST(SmallProducts, HaveABoundedSizeAndNumbersThatTouch) {
  const auto is_small = [](int64_t m, int64_t k, int64_t n) {
    return ops::is_small_product(matrix(m, k), matrix(k, n));
  };
  EXPECT_TRUE(is_small(8, 8, 1024));
  EXPECT_TRUE(is_small(1024, 64, 1024));
  for (const int64_t beyond : {7, 1025}) {
    EXPECT_FALSE(is_small(beyond, 64, 64));
    EXPECT_FALSE(is_small(64, beyond, 64));
    EXPECT_FALSE(is_small(64, 64, beyond));
  }
  EXPECT_FALSE(is_small(1024, 65, 1024));
  const at::Tensor every_second = at::randn({64, 128}).slice(1, 0, 128, 2);
  EXPECT_FALSE(ops::is_small_product(every_second, matrix(64, 64)));
  EXPECT_FALSE(ops::is_small_product(matrix(64, 64), every_second));
  const at::Tensor same_rows = at::randn({1, 64}).expand({64, 64});
  EXPECT_FALSE(ops::is_small_product(same_rows, matrix(64, 64)));
  EXPECT_FALSE(ops::is_small_product(matrix(64, 64), same_rows));
}

TEST(SmallProducts, OfNewShapesAreLeftToOthersOnceAThreadHasUsedMany) {
  std::thread([] {
    const at::Tensor b = matrix(8, 8);
    int64_t rows = 8;
    while (ops::is_small_product(matrix(rows, 8), b) && rows < 1024) ++rows;
    EXPECT_EQ(rows, 8 + 256);
    EXPECT_TRUE(ops::is_small_product(matrix(8, 8), b));
    EXPECT_TRUE(ops::is_small_product(matrix(rows - 1, 8), b));
    EXPECT_FALSE(ops::is_small_product(matrix(9, 9), matrix(9, 9)));
  }).join();
  EXPECT_TRUE(ops::is_small_product(matrix(300, 8), matrix(8, 8)));
}

}  // namespace
}  // namespace yoke
