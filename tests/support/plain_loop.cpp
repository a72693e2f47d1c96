#include "tests/support/plain_loop.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <stdexcept>

namespace yoke::testing {
namespace {

std::vector<int64_t> windows_of(const PlainRun& run, int64_t step) {
  if (run.windows) return run.windows(step);
  std::vector<int64_t> windows;
  for (int64_t i = 0; i < run.global_batch; ++i)
    windows.push_back((step - 1) * run.global_batch + i);
  return windows;
}

// Returns the bytes [w * T + shift, w * T + shift + T) of every window w, as ids [B, T].
at::Tensor read_ids(const PlainRun& run,
                    const std::vector<uint8_t>& text,
                    int64_t step,
                    int64_t shift) {
  const std::vector<int64_t> windows = windows_of(run, step);
  at::Tensor ids = at::empty({static_cast<int64_t>(windows.size()), run.seq_len}, at::kLong);
  int64_t* out = ids.mutable_data_ptr<int64_t>();
  for (int64_t window : windows) {
    const int64_t first = window * run.seq_len + shift;
    if (first + run.seq_len > static_cast<int64_t>(text.size()))
      throw std::out_of_range("the text is too short");
    for (int64_t t = 0; t < run.seq_len; ++t) *out++ = text[first + t];
  }
  return ids;
}

// Returns the targets of the tokens of a step; -100 where a target does not count.
at::Tensor read_targets(const PlainRun& run,
                        const std::vector<uint8_t>& text,
                        int64_t step,
                        const at::Tensor& tokens) {
  at::Tensor targets = read_ids(run, text, step, 1);
  if (!run.counts.empty()) targets.masked_fill_(read_ids(run, run.counts, step, 1).eq(0), -100);
  if (run.document_end) targets.masked_fill_(tokens.eq(*run.document_end), -100);
  return targets;
}

// Returns the loss of all documents, each of which is a sequence of its own.
at::Tensor loss_of_documents(const PlainRun& run,
                             const PlainParams& params,
                             const at::Tensor& tokens,
                             const at::Tensor& targets) {
  std::vector<at::Tensor> losses;
  for (int64_t b = 0; b < tokens.size(0); ++b) {
    for (int64_t begin = 0, end = 1; end <= tokens.size(1); ++end) {
      const bool ends = tokens[b][end - 1].item<int64_t>() == *run.document_end;
      if (!ends && end < tokens.size(1)) continue;
      const auto part = [&](const at::Tensor& t) {
        return t.slice(0, b, b + 1).slice(1, begin, end);
      };
      losses.push_back(plain_loss(run, params, part(tokens), part(targets)));
      begin = end;
    }
  }
  return at::stack(losses).sum();
}

struct Moments {
  at::Tensor first, second;
};

// Muon updates the matrices of the blocks between the embedding and the head.
bool is_hidden_matrix(const std::string& name, const at::Tensor& param) {
  return param.dim() == 2 && name != "model.embed_tokens.weight" && name != "lm_head.weight";
}

// Returns the matrix with all singular values brought close to 1.
at::Tensor orthogonal(at::Tensor x) {
  if (x.size(0) > x.size(1)) return orthogonal(x.t()).t();
  x = x / at::clamp_min(at::norm(x), 1e-7);
  for (int n = 0; n < 5; ++n) {
    const at::Tensor s = at::mm(x, x.t());
    x = 3.4445 * x + at::mm(-4.7750 * s + 2.0315 * at::mm(s, s), x);
  }
  return x;
}

void update(const PlainRun& run,
            int64_t step,
            const std::string& name,
            at::Tensor param,
            const at::Tensor& grad,
            Moments& m) {
  const double lr = run.lr(step);
  const bool decays = !run.decay_matrices || param.dim() > 1;
  at::Tensor g = grad;
  if (decays && run.optimizer == "adam") g = grad + run.weight_decay * param;
  if (decays && run.optimizer != "adam") param.sub_(param * (lr * run.weight_decay));
  if (run.optimizer == "sgd") {
    m.first = run.momentum * m.first + g;
    param.sub_(lr * m.first);
    return;
  }
  if (run.optimizer == "muon" && is_hidden_matrix(name, param)) {
    const double mu = run.momentum;
    m.first = mu * m.first + (1 - mu) * g;
    const auto width = static_cast<double>(std::max(param.size(0), param.size(1)));
    param.sub_(lr * 0.2 * std::sqrt(width) * orthogonal(mu * m.first + (1 - mu) * g));
    return;
  }
  if (run.optimizer == "lion") {
    param.sub_(lr * at::sign(run.beta1 * m.first + (1 - run.beta1) * g));
    m.first = run.beta2 * m.first + (1 - run.beta2) * g;
    return;
  }
  m.first = run.beta1 * m.first + (1 - run.beta1) * g;
  m.second = run.beta2 * m.second + (1 - run.beta2) * g * g;
  const double correction1 = run.bias_correction ? 1 - std::pow(run.beta1, step) : 1,
               correction2 = run.bias_correction ? 1 - std::pow(run.beta2, step) : 1;
  param.sub_(lr * (m.first / correction1) / (at::sqrt(m.second / correction2) + run.eps));
}

double norm_of_gradients(const PlainParams& params) {
  double squares = 0;
  for (const auto& [name, p] : params)
    squares += p.grad().to(at::kDouble).square().sum().item<double>();
  return std::sqrt(squares);
}

}  // namespace

PlainResult train_plain(const PlainRun& run, const std::vector<uint8_t>& text) {
  PlainResult result;
  PlainParams params = plain_params(run);
  std::map<std::string, Moments> moments;
  for (const auto& [name, p] : params) moments[name] = {at::zeros_like(p), at::zeros_like(p)};
  for (int64_t step = 1; step <= run.steps; ++step) {
    const at::Tensor tokens = read_ids(run, text, step, 0);
    const at::Tensor targets = read_targets(run, text, step, tokens);
    const at::Tensor sum = run.document_end ? loss_of_documents(run, params, tokens, targets)
                                            : plain_loss(run, params, tokens, targets);
    const at::Tensor loss = sum / targets.ge(0).sum().item<double>();
    loss.backward();
    const double norm = norm_of_gradients(params);
    const double scale = run.clip > 0 ? std::min(1.0, run.clip / (norm + 1e-6)) : 1.0;
    at::NoGradGuard no_grad;
    for (auto& [name, p] : params) {
      update(run, step, name, p, p.grad() * scale, moments[name]);
      p.mutable_grad() = at::Tensor();
    }
    result.loss.push_back(loss.item<double>());
    result.grad_norm.push_back(norm);
  }
  for (const auto& [name, p] : params) result.params[name] = p.detach();
  return result;
}

}  // namespace yoke::testing
