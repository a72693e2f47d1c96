// Tests of the oracle itself, on which other tests rely.
#include "tests/support/plain_loop.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>

namespace yoke::testing {
namespace {

std::vector<uint8_t> text_of(size_t size) {
  const std::string words = "the ox and the mule pull one load under one yoke; ";
  std::vector<uint8_t> text(size);
  for (size_t i = 0; i < size; ++i)
    text[i] = static_cast<uint8_t>(words[(i + i / 97) % words.size()]);
  return text;
}

PlainRun miniature() {
  PlainRun run;
  run.dim = 12;
  run.layers = 2;
  run.heads = 3;
  run.kv_heads = 1;
  run.ffn_dim = 10;
  run.vocab = 17;
  run.fp64 = true;
  return run;
}

// The matrices are small, so a second thread costs more time than it saves.
const bool one_thread = [] {
  at::set_num_threads(1);
  return true;
}();

TEST(PlainLoop, GradientsEqualCentralDifferences) {
  for (bool tied : {false, true}) {
    PlainRun run = miniature();
    run.tied = tied;
    PlainParams params = plain_params(run);
    const at::Tensor ids = (at::arange(2 * 7, at::kLong) * 5 % 17).view({2, 7});
    const at::Tensor targets = (ids * 3 + 1) % 17;
    for (auto& [name, p] : params) {
      if (p.dim() > 1) p.detach().mul_(10);  // larger values, where the model is not nearly linear
    }
    plain_loss(run, params, ids, targets).backward();
    at::NoGradGuard no_grad;
    for (auto& [name, p] : params) {
      at::Tensor flat = p.detach().flatten();
      for (int64_t i = 0; i < flat.numel(); i += 1 + flat.numel() / 7) {
        const double x = flat[i].item<double>(), h = 1e-6;
        flat[i].fill_(x + h);
        const double up = plain_loss(run, params, ids, targets).item<double>();
        flat[i].fill_(x - h);
        const double down = plain_loss(run, params, ids, targets).item<double>();
        flat[i].fill_(x);
        const double slope = (up - down) / (2 * h), grad = p.grad().flatten()[i].item<double>();
        EXPECT_NEAR(grad, slope, 1e-7 * (1 + std::fabs(slope)))
            << name << "[" << i << "], tied " << tied;
      }
    }
  }
}

TEST(PlainLoop, AttentionIsCausal) {
  const PlainRun run = miniature();
  const PlainParams params = plain_params(run);
  const at::Tensor ids = at::arange(6, at::kLong).view({1, 6});
  at::Tensor changed = ids.clone();
  changed[0][5] = 16;
  // Only the last position may depend on the last token: the loss of the first five targets stays
  // the same.
  const auto loss = [&](const at::Tensor& tokens) {
    return plain_loss(run, params, tokens, ids).item<double>() -
           plain_loss(run, params, tokens.narrow(1, 0, 5), ids.narrow(1, 0, 5)).item<double>();
  };
  EXPECT_NE(loss(ids), loss(changed));
  EXPECT_EQ(plain_loss(run, params, ids.narrow(1, 0, 5), ids.narrow(1, 0, 5)).item<double>(),
            plain_loss(run, params, changed.narrow(1, 0, 5), ids.narrow(1, 0, 5)).item<double>());
}

TEST(PlainLoop, StartsAtTheLossOfAUniformGuessAndFalls) {
  const auto text = text_of(32 * 8 * 40 + 1);
  for (bool fp64 : {false, true}) {
    PlainRun run;
    run.fp64 = fp64;
    const PlainResult result = train_plain(run, text);
    EXPECT_NEAR(result.loss.front(), std::log(256.0), 0.05);
    EXPECT_LT(result.loss.back(), 0.9 * result.loss.front());
    EXPECT_EQ(result.params.at("model.embed_tokens.weight").scalar_type(),
              fp64 ? at::kDouble : at::kFloat);
  }
}

TEST(PlainLoop, InitialValuesAreThoseOfTheDocumentedFormula) {
  PlainRun run = miniature();
  run.seed = 7;
  const PlainParams params = plain_params(run);
  // The values of seed 7 come from an independent implementation of the formula.
  EXPECT_TRUE(at::equal(params.at("model.norm.weight"), at::ones({12}, at::kDouble)));
  const at::Tensor q = params.at("model.layers.0.self_attn.q_proj.weight").detach();
  const at::Tensor o = params.at("model.layers.0.self_attn.o_proj.weight").detach();
  EXPECT_EQ(q[0][0].item<double>(), -0.00884631834924221);
  EXPECT_EQ(q[11][11].item<double>(), -0.02054469659924507);
  EXPECT_EQ(o[0][0].item<double>(), 0.011628635227680206);
  EXPECT_NEAR(q.std().item<double>(), 0.02, 0.002);
  EXPECT_NEAR(o.std().item<double>(), 0.01, 0.001);
  EXPECT_LE(q.abs().max().item<double>(), 0.02 * std::sqrt(3.0));
  EXPECT_FALSE(at::equal(q, params.at("model.layers.1.self_attn.q_proj.weight").detach()));
}

TEST(PlainLoop, GivenWindowsReplaceTheSequentialOnes) {
  const auto text = text_of(32 * 8 * 4 + 1);
  PlainRun run;
  run.steps = 2;
  const PlainResult sequential = train_plain(run, text);
  run.windows = [](int64_t step) {
    std::vector<int64_t> windows;
    for (int64_t i = 0; i < 8; ++i) windows.push_back((step - 1) * 8 + i);
    return windows;
  };
  EXPECT_EQ(train_plain(run, text).loss, sequential.loss);
  run.windows = [](int64_t step) { return std::vector<int64_t>(8, step); };
  EXPECT_NE(train_plain(run, text).loss, sequential.loss);
}

}  // namespace
}  // namespace yoke::testing
