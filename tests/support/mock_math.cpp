#include "tests/support/mock_math.hpp"

#include <cmath>

namespace yoke::testing::mock {

Vec embed_forward(const Ids& tokens, const Vec& embed) {
  Vec carry;
  for (int64_t t : tokens) {
    carry.insert(carry.end(), embed.begin() + t * kD, embed.begin() + (t + 1) * kD);
  }
  return carry;
}

void embed_backward(const Ids& tokens, const Vec& grad, Vec& d_embed) {
  for (size_t n = 0; n < tokens.size(); ++n) {
    for (int64_t d = 0; d < kD; ++d) d_embed[tokens[n] * kD + d] += grad[n * kD + d];
  }
}

Vec Mlp::hidden(const double* row) const {
  Vec h(kH);
  for (int64_t j = 0; j < kH; ++j) {
    double s = bias[j];
    for (int64_t d = 0; d < kD; ++d) s += up[j * kD + d] * row[d] * scale[d];
    h[j] = std::tanh(s);
  }
  return h;
}

Vec Mlp::forward(const Vec& x) const {
  Vec y = x;
  for (size_t row = 0; row < x.size(); row += kD) {
    const Vec h = hidden(&x[row]);
    for (int64_t d = 0; d < kD; ++d) {
      for (int64_t j = 0; j < kH; ++j) y[row + d] += down[d * kH + j] * h[j];
    }
  }
  return y;
}

Vec Mlp::backward(const Vec& x, const Vec& grad, Vec& d_up, Vec& d_bias, Vec& d_down) const {
  Vec d_x = grad;
  for (size_t row = 0; row < x.size(); row += kD) {
    const Vec h = hidden(&x[row]);
    for (int64_t j = 0; j < kH; ++j) {
      double d_h = 0;
      for (int64_t d = 0; d < kD; ++d) {
        d_h += grad[row + d] * down[d * kH + j];
        d_down[d * kH + j] += grad[row + d] * h[j];
      }
      const double d_s = d_h * (1 - h[j] * h[j]);
      d_bias[j] += d_s;
      for (int64_t d = 0; d < kD; ++d) {
        d_up[j * kD + d] += d_s * x[row + d] * scale[d];
        d_x[row + d] += d_s * up[j * kD + d] * scale[d];
      }
    }
  }
  return d_x;
}

Vec Head::softmax(const double* row, double* log_sum) const {
  Vec p(kV);
  double sum = 0;
  for (int64_t v = 0; v < kV; ++v) {
    for (int64_t d = 0; d < kD; ++d) p[v] += gain[0] * out[v * kD + d] * row[d];
    sum += std::exp(p[v]);
  }
  *log_sum = std::log(sum);
  for (double& value : p) value = std::exp(value) / sum;
  return p;
}

void Head::forward(const Vec& x, const Ids& targets, double* loss, double* weight) const {
  for (size_t n = 0; n < targets.size(); ++n) {
    if (targets[n] < 0) continue;
    const double *row = &x[n * kD], *chosen = &out[targets[n] * kD];
    double log_sum, logit = 0;
    softmax(row, &log_sum);
    for (int64_t d = 0; d < kD; ++d) logit += gain[0] * chosen[d] * row[d];
    *loss += log_sum - logit;
    *weight += 1;
  }
}

Vec Head::backward(
    const Vec& x, const Ids& targets, double loss_grad, Vec& d_out, Vec& d_gain) const {
  Vec d_x(x.size());
  for (size_t n = 0; n < targets.size(); ++n) {
    if (targets[n] < 0) continue;
    double log_sum;
    Vec d_logit = softmax(&x[n * kD], &log_sum);
    d_logit[targets[n]] -= 1;
    for (int64_t v = 0; v < kV; ++v) {
      for (int64_t d = 0; d < kD; ++d) {
        const double g = loss_grad * d_logit[v];
        d_x[n * kD + d] += g * gain[0] * out[v * kD + d];
        d_out[v * kD + d] += g * gain[0] * x[n * kD + d];
        d_gain[0] += g * out[v * kD + d] * x[n * kD + d];
      }
    }
  }
  return d_x;
}

}  // namespace yoke::testing::mock
