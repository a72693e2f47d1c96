// The iteration of yoke/muon.h is compared with its effect on matrices whose singular values are
// known, and the update with the formula of the contract.
#include "yoke/muon.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

namespace {

using Matrix = std::vector<double>;  // [rows, columns]

// Returns the reflection of size n by a random vector: an orthogonal, symmetric matrix.
Matrix reflection(int64_t n, std::mt19937_64& random) {
  std::vector<double> v(n);
  double squares = 0;
  for (double& x : v) {
    x = std::normal_distribution<double>()(random);
    squares += x * x;
  }
  Matrix q(n * n);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j) q[i * n + j] = (i == j) - 2 * v[i] * v[j] / squares;
  return q;
}

// Returns left * diagonal(values) * right, where left has `rows` and right has `columns` columns.
Matrix compose(const Matrix& left,
               const std::vector<double>& values,
               const Matrix& right,
               int64_t rows,
               int64_t columns) {
  Matrix x(rows * columns, 0);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      for (size_t k = 0; k < values.size(); ++k)
        x[i * columns + j] += left[i * rows + k] * values[k] * right[k * columns + j];
  return x;
}

// The iteration leaves the singular vectors alone and changes each singular value by a polynomial,
// so the result is known for a matrix with known vectors and values.
TEST(Orthogonalize, ChangesOnlySingularValues) {
  std::mt19937_64 random(11);
  for (const auto& [rows, columns] : {std::pair{6, 6}, {3, 9}, {9, 3}, {1, 5}, {5, 1}, {1, 1}}) {
    for (int trial = 0; trial < 20; ++trial) {
      std::vector<double> values(std::min(rows, columns));
      double squares = 0;
      for (double& s : values) {
        s = std::uniform_real_distribution<double>(0.01, 1)(random);
        squares += s * s;
      }
      const Matrix left = reflection(rows, random), right = reflection(columns, random);
      Matrix x = compose(left, values, right, rows, columns);
      for (double& s : values) {
        s /= std::sqrt(squares);
        for (int n = 0; n < 5; ++n)
          s = 3.4445 * s - 4.7750 * std::pow(s, 3) + 2.0315 * std::pow(s, 5);
        if (s > 0) {
          EXPECT_LT(s, 1.3);
        }
      }
      const Matrix expected = compose(left, values, right, rows, columns);
      std::vector<double> scratch(yoke_orthogonalize_scratch(rows, columns), NAN);
      yoke_orthogonalize(x.data(), rows, columns, scratch.data());
      for (size_t i = 0; i < x.size(); ++i)
        ASSERT_NEAR(x[i], expected[i], 1e-11) << rows << " x " << columns << ", element " << i;
    }
  }
}

// The gradient may have another dtype than the values.
TEST(Muon, IsTheFormulaOfTheContract) {
  std::mt19937_64 random(7);
  const auto number = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  for (const auto& [rows, columns] : {std::pair{3, 5}, {5, 3}, {4, 4}}) {
    for (const int decay : {0, 1}) {
      YokeOptimizer o{};
      o.momentum = number(0.5, 1);
      o.weight_decay = number(0, 0.5);
      const double lr = number(0, 0.1), scale = number(0.1, 1);
      const int64_t shape[] = {rows, columns};
      const int64_t count = int64_t{rows} * columns;
      YokeParameter p{};
      p.shape = shape;
      p.ndim = 2;
      p.decay = decay;
      std::vector<double> value(count), moment(count), x(count), memory(200);
      std::vector<float> gradient(count);
      for (int64_t k = 0; k < count; ++k) {
        value[k] = number(-2, 2);
        moment[k] = number(-1, 1);
        gradient[k] = static_cast<float>(number(-1, 1));
      }
      const std::vector<double> old_value = value, old_moment = moment;
      const YokeMatrix matrix{&p, value.data(), moment.data(), gradient.data(), YOKE_F64, YOKE_F32};
      yoke_muon(&o, lr, scale, &matrix, memory.data());
      for (int64_t k = 0; k < count; ++k) {
        const double g = scale * static_cast<double>(gradient[k]);
        const double m = o.momentum * old_moment[k] + (1 - o.momentum) * g;
        ASSERT_EQ(moment[k], m);
        x[k] = o.momentum * m + (1 - o.momentum) * g;
      }
      yoke_orthogonalize(x.data(), rows, columns, memory.data());
      const double keep = decay != 0 ? 1 - lr * o.weight_decay : 1;
      for (int64_t k = 0; k < count; ++k)
        ASSERT_EQ(value[k],
                  keep * old_value[k] - lr * (0.2 * std::sqrt(std::max(rows, columns))) * x[k]);
    }
  }
}

TEST(Orthogonalize, LeavesZerosAlone) {
  Matrix x(6, 0), scratch(yoke_orthogonalize_scratch(2, 3));
  yoke_orthogonalize(x.data(), 2, 3, scratch.data());
  for (const double e : x) EXPECT_EQ(e, 0);
}

// A model of three blocks. The first and the second share parameter 0, the second and the third
// share parameter 5.
class HiddenMatrices : public ::testing::Test {
 protected:
  HiddenMatrices() {
    for (size_t i = 0; i < params_.size(); ++i) {
      params_[i].shape = kShape;
      params_[i].ndim = i == 2 ? 1 : i == 3 ? 3 : 2;
      params_[i].trainable = i != 4;
      param_list_[i] = &params_[i];
    }
    for (size_t b = 0; b < blocks_.size(); ++b) {
      blocks_[b].params = lists_[b].data();
      blocks_[b].num_params = lists_[b].size();
      block_list_[b] = &blocks_[b];
    }
    model_.params = param_list_.data();
    model_.num_params = param_list_.size();
    model_.blocks = block_list_.data();
    model_.num_blocks = block_list_.size();
    muon_.kind = YOKE_MUON;
  }
  std::vector<int64_t> hidden() const {
    std::vector<int64_t> found;
    for (int64_t i = 0; i < static_cast<int64_t>(params_.size()); ++i)
      if (yoke_is_hidden_matrix(&model_, i) != 0) found.push_back(i);
    return found;
  }

  static constexpr int64_t kShape[3] = {2, 2, 2};
  std::vector<std::vector<int64_t>> lists_{{0}, {0, 1, 2, 3, 4, 5}, {5, 6}};
  std::vector<YokeParameter> params_{7};
  std::vector<YokeBlock> blocks_{3};
  std::vector<const YokeParameter*> param_list_{7};
  std::vector<const YokeBlock*> block_list_{3};
  YokeModelSummary model_{};
  YokeOptimizer muon_{};
};

TEST_F(HiddenMatrices, AreTrainableMatricesOfInnerBlocks) {
  EXPECT_EQ(hidden(), std::vector<int64_t>{1});
  params_[4].trainable = 1;
  EXPECT_EQ(hidden(), (std::vector<int64_t>{1, 4}));
}

TEST_F(HiddenMatrices, DoNotExistWithoutInnerBlocks) {
  lists_[0] = {0, 1, 2, 3, 4, 5, 6};
  blocks_[0].params = lists_[0].data();
  blocks_[0].num_params = lists_[0].size();
  for (const uint64_t blocks : {0, 1, 2}) {
    model_.num_blocks = blocks;
    EXPECT_THAT(hidden(), ::testing::IsEmpty()) << blocks;
  }
}

TEST_F(HiddenMatrices, HaveOneMoment) {
  const auto moments = [&](int64_t i) {
    const char* kinds[2] = {"", ""};
    const int count = yoke_moments_of(&muon_, &model_, i, kinds);
    for (int m = count; m < 2; ++m) EXPECT_EQ(kinds[m], nullptr);
    return std::vector<std::string>(kinds, kinds + count);
  };
  EXPECT_EQ(moments(1), std::vector<std::string>{"exp_avg"});
  EXPECT_EQ(moments(0), (std::vector<std::string>{"exp_avg", "exp_avg_sq"}));
  EXPECT_EQ(moments(4), std::vector<std::string>{}) << "it is frozen";
  muon_.kind = YOKE_ADAMW;
  EXPECT_EQ(moments(1), (std::vector<std::string>{"exp_avg", "exp_avg_sq"}));
}

}  // namespace
