#include "core/kernels/cpu_products.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUFunctions.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/time.h>

#include <array>
#include <atomic>
#include <cmath>
#include <vector>

namespace yoke {
namespace {

constexpr int kLayouts = 4;

// Returns a matrix of random numbers.
at::Tensor matrix(int64_t rows, int64_t columns, int layout = 0) {
  switch (layout) {
    case 0:
      return at::randn({rows, columns});
    case 1:
      return at::randn({columns, rows}).t();
    case 2:  // gaps between the rows
      return at::randn({rows, columns + 3}).narrow(1, 2, columns);
    default:  // gaps between the numbers
      return at::randn({rows, 2 * columns}).slice(1, 0, 2 * columns, 2);
  }
}

at::Tensor exact(const at::Tensor& a, const at::Tensor& b) {
  return at::mm(a.to(at::kDouble), b.to(at::kDouble));
}

// inner: number of products in each sum.
void expect_product(const at::Tensor& found, const at::Tensor& expected, int64_t inner) {
  ASSERT_EQ(found.sizes(), expected.sizes());
  if (found.numel() == 0) return;
  const double error = (found.to(at::kDouble) - expected).abs().max().item<double>();
  EXPECT_LT(error, 1e-6 * static_cast<double>(inner + 1)) << found.sizes();
}

class CpuProducts : public ::testing::Test {
 protected:
  CpuProducts() {
    at::manual_seed(1);
    at::set_num_threads(1);
    onednn_ = ops::use_fast_cpu_products();
  }
  ~CpuProducts() override { at::set_num_threads(threads_); }

  const int threads_ = at::get_num_threads();
  bool onednn_ = false;
};

TEST_F(CpuProducts, ReplacesAllFormsOfTheOperatorsOnProcessorsOfOthersThanIntel) {
#if defined(__x86_64__)
  EXPECT_EQ(onednn_, !__builtin_cpu_is("intel") && __builtin_cpu_supports("avx512dq"));
#else
  EXPECT_FALSE(onednn_);
#endif
  for (const auto& [name, form] : std::vector<std::array<const char*, 2>>{{"aten::mm", ""},
                                                                          {"aten::mm", "out"},
                                                                          {"aten::addmm", ""},
                                                                          {"aten::addmm", "out"},
                                                                          {"aten::addmm_", ""}}) {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, form);
    EXPECT_EQ(op.dumpState().find("cpu_products.cpp") != std::string::npos, onednn_)
        << name << form;
  }
}

// Different kernels add in different orders, so equal bits mean that the same one was used.
TEST_F(CpuProducts, ReplacesSmallProductsAndLargeOnesOfDenseMatrices) {
  const auto replaced = [](const at::Tensor& a, const at::Tensor& b) {
    return !at::equal(at::mm(a, b), at::cpu::mm(a, b));
  };
  EXPECT_EQ(replaced(matrix(64, 512), matrix(512, 32)), onednn_);
  EXPECT_EQ(replaced(matrix(64, 512, 2), matrix(512, 64, 2)), onednn_);
  EXPECT_FALSE(replaced(matrix(4, 512), matrix(512, 32)));
  EXPECT_EQ(replaced(matrix(4, 2048), matrix(2048, 512)), onednn_);
  EXPECT_FALSE(replaced(matrix(4, 2048, 2), matrix(2048, 512, 2)));
  at::globalContext().setUserEnabledMkldnn(false);
  EXPECT_FALSE(replaced(matrix(64, 512), matrix(512, 32)));
  at::globalContext().setUserEnabledMkldnn(true);
  at::set_num_threads(2);
  EXPECT_FALSE(replaced(matrix(64, 512), matrix(512, 32)));
}

TEST_F(CpuProducts, OfSomeRowsAreRowsOfTheProductOfAll) {
  if (!onednn_) GTEST_SKIP() << "LibTorch's kernels depend on the number of rows";
  const at::Tensor a = matrix(512, 200), b = matrix(96, 200).t(), product = at::mm(a, b);
  for (const int64_t rows : {8, 100, 511})
    EXPECT_TRUE(at::equal(at::mm(a.narrow(0, 1, rows), b), product.narrow(0, 1, rows)));
  const at::Tensor y = matrix(300, 120), x = matrix(300, 64), weight_gradient = at::mm(y.t(), x);
  EXPECT_TRUE(at::equal(at::mm(y.narrow(1, 40, 80).t(), x), weight_gradient.narrow(0, 40, 80)));
  EXPECT_TRUE(at::equal(at::mm(y.narrow(1, 40, 30).t(), x), weight_gradient.narrow(0, 40, 30)));
}

// Kernels of oneDNN that a handler interrupts corrupt the heap.
TEST_F(CpuProducts, AreNotInterruptedBySignals) {
  static std::atomic<int> signals;
  struct sigaction counts {
  }, before{};
  counts.sa_handler = [](int) { ++signals; };
  counts.sa_flags = SA_RESTART;
  ::sigaction(SIGALRM, &counts, &before);
  const itimerval often{{0, 50}, {0, 50}}, never{};  // microseconds
  ::setitimer(ITIMER_REAL, &often, nullptr);
  for (int round = 0; round < 3000 || signals < 100; ++round) {
    const at::Tensor a = at::ones({64, 256}), b = at::ones({256, 64});
    ASSERT_TRUE(at::equal(at::mm(a, b), at::full({64, 64}, 256.0f)));
  }
  ::setitimer(ITIMER_REAL, &never, nullptr);
  ::sigaction(SIGALRM, &before, nullptr);
}

TEST_F(CpuProducts, AreThoseOfFp64) {
  for (const auto& [m, k, n] : std::vector<std::array<int64_t, 3>>{
           {128, 96, 160}, {1, 2048, 1024}, {300, 1, 5000}, {64, 64, 64}, {7, 0, 5}, {0, 3, 4}}) {
    for (int layout = 0; layout < kLayouts * kLayouts; ++layout) {
      const at::Tensor a = matrix(m, k, layout % kLayouts), b = matrix(k, n, layout / kLayouts);
      const at::Tensor product = exact(a, b);
      expect_product(at::mm(a, b), product, k);
      at::Tensor out = at::full({m, n}, NAN);
      at::mm_out(out, a, b);
      expect_product(out, product, k);
      const at::Tensor add = at::randn({m, n}), bias = at::randn({n});
      expect_product(at::addmm(add, a, b), product + add, k);
      expect_product(at::addmm(bias, a, b), product + bias, k);
      out.fill_(NAN);
      at::addmm_out(out, add, a, b);
      expect_product(out, product + add, k);
      out.copy_(add);
      at::addmm_out(out, out, a, b);
      expect_product(out, product + add, k);
      expect_product(at::empty({m, n}).copy_(add).addmm_(a, b), product + add, k);
    }
  }
}

TEST_F(CpuProducts, AreScaled) {
  const at::Tensor a = matrix(128, 96), b = matrix(96, 160), add = matrix(128, 160);
  const at::Tensor product = exact(a, b), nan = at::full({128, 160}, NAN);
  for (const auto& [beta, alpha] :
       std::vector<std::array<double, 2>>{{0.5, 2}, {1, 2}, {2, 1}, {2, 0}, {0, 1}, {0, 0}}) {
    const at::Tensor expected = alpha * product + beta * add;
    expect_product(at::addmm(add, a, b, beta, alpha), expected, 96);
    expect_product(add.clone().addmm_(a, b, beta, alpha), expected, 96);
    at::Tensor out = nan.clone();
    at::addmm_out(out, add, a, b, beta, alpha);
    expect_product(out, expected, 96);
  }
  expect_product(at::addmm(nan, a, b, 0), product, 96);
}

TEST_F(CpuProducts, AreWrittenToRowsWithGapsAndResizeTheResult) {
  const at::Tensor a = matrix(128, 96), b = matrix(96, 160), product = exact(a, b);
  at::Tensor wide = at::ones({128, 170}), gaps = wide.narrow(1, 5, 160);
  at::mm_out(gaps, a, b);
  expect_product(gaps, product, 96);
  EXPECT_TRUE(at::equal(wide.narrow(1, 0, 5), at::ones({128, 5})));
  EXPECT_TRUE(at::equal(wide.narrow(1, 165, 5), at::ones({128, 5})));
  at::Tensor columns = at::empty({160, 128}).t();
  at::mm_out(columns, a, b);
  expect_product(columns, product, 96);
  EXPECT_EQ(columns.stride(0), 1);
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{0}, {0, 0}}) {
    at::Tensor empty = at::empty(sizes);
    at::mm_out(empty, a, b);
    expect_product(empty, product, 96);
  }
}

TEST_F(CpuProducts, HaveGradients) {
  const at::Tensor a = matrix(128, 96).set_requires_grad(true);
  const at::Tensor b = matrix(96, 160).set_requires_grad(true), weight = matrix(128, 160);
  (at::mm(a, b) * weight).sum().backward();
  expect_product(a.grad(), exact(weight, b.detach().t()), 160);
  expect_product(b.grad(), exact(a.detach().t(), weight), 128);
}

TEST_F(CpuProducts, OfOtherTypesAreLeftToLibTorch) {
  const at::Tensor a = at::randint(9, {128, 96}, at::kLong);
  const at::Tensor b = at::randint(9, {96, 160}, at::kLong);
  expect_product(at::mm(a, b), exact(a, b), 1);
  const at::Tensor x = at::randn({128, 96}, at::kDouble), y = at::randn({96, 160}, at::kDouble);
  EXPECT_TRUE(at::allclose(at::mm(x, y), (x.unsqueeze(2) * y).sum(1), 0, 1e-12));
}

TEST_F(CpuProducts, RejectWrongArguments) {
  for (const int64_t rows : {2, 128}) {
    const at::Tensor a = matrix(rows, 96), b = matrix(96, 160), other = matrix(rows, 160);
    EXPECT_THROW(at::mm(a, a), c10::Error);
    EXPECT_THROW(at::mm(a, b.to(at::kDouble)), c10::Error);
    EXPECT_THROW(at::addmm(other.to(at::kDouble), a, b), c10::Error);
    EXPECT_THROW(at::addmm(at::ones({159}), a, b), c10::Error);
    EXPECT_THROW(at::addmm(at::ones({159}), a, b, 0), c10::Error);
    at::Tensor bias = at::ones({160});
    EXPECT_THROW(bias.addmm_(a, b), c10::Error);
    EXPECT_EQ(bias.sizes(), at::IntArrayRef({160}));
  }
}

}  // namespace
}  // namespace yoke
