// The mathematics of the mock model: plain functions on doubles. The callbacks of MockModel call
// them, and its oracle calls them directly. Matrices are row-major, one row per token.
#pragma once

#include <cstdint>
#include <vector>

namespace yoke::testing::mock {

using Vec = std::vector<double>;
using Ids = std::vector<int64_t>;
inline constexpr int64_t kV = 11, kD = 5, kH = 7;  // vocabulary, model width, hidden width

Vec embed_forward(const Ids& tokens, const Vec& embed);
void embed_backward(const Ids& tokens, const Vec& grad, Vec& d_embed);

// Computes y = x + tanh(x * scale @ up^T + bias) @ down^T.
struct Mlp {
  const Vec &up, &bias, &scale, &down;

  Vec forward(const Vec& x) const;
  // Adds to the gradients of the parameters and returns the gradient of x.
  Vec backward(const Vec& x, const Vec& grad, Vec& d_up, Vec& d_bias, Vec& d_down) const;
  Vec hidden(const double* row) const;
};

// Computes the cross-entropy of gain * x @ out^T against targets. A negative target has no loss.
struct Head {
  const Vec &out, &gain;

  void forward(const Vec& x, const Ids& targets, double* loss, double* weight) const;
  Vec backward(const Vec& x, const Ids& targets, double loss_grad, Vec& d_out, Vec& d_gain) const;
  // Returns the probabilities of one row and sets log_sum to the logarithm of their normaliser.
  Vec softmax(const double* row, double* log_sum) const;
};

}  // namespace yoke::testing::mock
