// The model of the oracle: the textbook formulas, one line each where possible. In shapes, B is
// sequences, T positions, D model width, H query heads, K key heads, Q elements of a head and V
// vocabulary.
#include <ATen/ATen.h>

#include <cmath>

#include "tests/support/plain_loop.hpp"

namespace yoke::testing {
namespace {

at::ScalarType dtype_of(const PlainRun& run) {
  return run.fp64 ? at::kDouble : at::kFloat;
}

uint64_t fnv1a64(const std::string& text) {
  uint64_t hash = 14695981039346656037ull;
  for (unsigned char c : text) hash = (hash ^ c) * 1099511628211ull;
  return hash;
}

// Returns the initial value of element i: uniform with standard deviation `std`, from a
// counter-based generator. key: derived from the seed and the name of the parameter.
float initial_value(uint64_t key, uint64_t i, double std) {
  uint64_t z = key + (i + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  z ^= z >> 31;
  const double u = static_cast<double>(z >> 40) / 16777216.0;
  return static_cast<float>((2 * u - 1) * std::sqrt(3.0) * std);
}

at::Tensor make_param(const PlainRun& run,
                      const std::string& name,
                      at::IntArrayRef shape,
                      double std) {
  at::Tensor value = at::ones(shape, at::kFloat);
  if (shape.size() > 1) {
    const uint64_t key = fnv1a64(name) ^ run.seed;
    float* out = value.mutable_data_ptr<float>();
    for (int64_t i = 0; i < value.numel(); ++i)
      out[i] = initial_value(key, static_cast<uint64_t>(i), std);
  }
  return value.to(dtype_of(run)).requires_grad_(true);
}

at::Tensor rms_norm(const at::Tensor& x_BTD, const at::Tensor& weight_D, double eps) {
  return weight_D * x_BTD * (x_BTD * x_BTD).mean(-1, true).add(eps).rsqrt();
}

// Rotates each pair (x[i], x[i + Q/2]) by position * theta^(-2i/Q).
at::Tensor rotate(const PlainRun& run, const at::Tensor& x_BHTQ) {
  const int64_t length = x_BHTQ.size(2), half = x_BHTQ.size(3) / 2;
  const auto options = at::TensorOptions().dtype(dtype_of(run));
  const at::Tensor frequency =
      at::pow(run.rope_theta, at::arange(half, options) / -static_cast<double>(half));
  const at::Tensor angle_TR = at::arange(length, options).unsqueeze(1) * frequency.unsqueeze(0);
  const at::Tensor cos = angle_TR.cos(), sin = angle_TR.sin();
  const at::Tensor a = x_BHTQ.narrow(3, 0, half), b = x_BHTQ.narrow(3, half, half);
  return at::cat({a * cos - b * sin, b * cos + a * sin}, 3);
}

at::Tensor attention(const PlainRun& run,
                     const PlainParams& p,
                     const std::string& at_layer,
                     const at::Tensor& x) {
  const int64_t batch = x.size(0), length = x.size(1), size = run.dim / run.heads;
  const auto project = [&](const char* which, int64_t heads) {
    const at::Tensor y = at::matmul(x, p.at(at_layer + which + "_proj.weight").t());
    return y.reshape({batch, length, heads, size}).transpose(1, 2);
  };
  const at::Tensor q = rotate(run, project("q", run.heads));
  // Each key head is shared by the same number of neighbouring query heads.
  const int64_t share = run.heads / run.kv_heads;
  const at::Tensor k = rotate(run, project("k", run.kv_heads)).repeat_interleave(share, 1);
  const at::Tensor v = project("v", run.kv_heads).repeat_interleave(share, 1);
  const at::Tensor future = at::ones({length, length}, at::kBool).triu(1);
  const at::Tensor scores = at::matmul(q, k.transpose(2, 3)) / std::sqrt(static_cast<double>(size));
  const at::Tensor weights = at::softmax(scores.masked_fill(future, -INFINITY), -1);
  const at::Tensor out = at::matmul(weights, v).transpose(1, 2).reshape({batch, length, run.dim});
  return at::matmul(out, p.at(at_layer + "o_proj.weight").t());
}

at::Tensor feed_forward(const PlainParams& p, const std::string& at_layer, const at::Tensor& x) {
  const at::Tensor gate = at::matmul(x, p.at(at_layer + "gate_proj.weight").t());
  const at::Tensor up = at::matmul(x, p.at(at_layer + "up_proj.weight").t());
  return at::matmul(gate * at::sigmoid(gate) * up, p.at(at_layer + "down_proj.weight").t());
}

}  // namespace

PlainParams plain_params(const PlainRun& run) {
  const int64_t size = run.dim / run.heads;
  const double std = 0.02, residual = 0.02 / std::sqrt(2.0 * static_cast<double>(run.layers));
  PlainParams p;
  const auto add = [&](const std::string& name, at::IntArrayRef shape, double deviation) {
    p[name] = make_param(run, name, shape, deviation);
  };
  add("model.embed_tokens.weight", {run.vocab, run.dim}, std);
  for (int64_t n = 0; n < run.layers; ++n) {
    const std::string layer = "model.layers." + std::to_string(n) + ".";
    add(layer + "input_layernorm.weight", {run.dim}, 0);
    add(layer + "self_attn.q_proj.weight", {run.heads * size, run.dim}, std);
    add(layer + "self_attn.k_proj.weight", {run.kv_heads * size, run.dim}, std);
    add(layer + "self_attn.v_proj.weight", {run.kv_heads * size, run.dim}, std);
    add(layer + "self_attn.o_proj.weight", {run.dim, run.heads * size}, residual);
    add(layer + "post_attention_layernorm.weight", {run.dim}, 0);
    add(layer + "mlp.gate_proj.weight", {run.ffn_dim, run.dim}, std);
    add(layer + "mlp.up_proj.weight", {run.ffn_dim, run.dim}, std);
    add(layer + "mlp.down_proj.weight", {run.dim, run.ffn_dim}, residual);
  }
  add("model.norm.weight", {run.dim}, 0);
  if (!run.tied) add("lm_head.weight", {run.vocab, run.dim}, std);
  return p;
}

at::Tensor plain_loss(const PlainRun& run,
                      const PlainParams& p,
                      const at::Tensor& tokens,
                      const at::Tensor& targets) {
  const at::Tensor& embedding = p.at("model.embed_tokens.weight");
  at::Tensor x = embedding.index_select(0, tokens.flatten())
                     .reshape({tokens.size(0), tokens.size(1), run.dim});
  for (int64_t n = 0; n < run.layers; ++n) {
    const std::string layer = "model.layers." + std::to_string(n) + ".";
    x = x + attention(run,
                      p,
                      layer + "self_attn.",
                      rms_norm(x, p.at(layer + "input_layernorm.weight"), run.norm_eps));
    x = x +
        feed_forward(p,
                     layer + "mlp.",
                     rms_norm(x, p.at(layer + "post_attention_layernorm.weight"), run.norm_eps));
  }
  x = rms_norm(x, p.at("model.norm.weight"), run.norm_eps);
  const at::Tensor logits = at::matmul(x, (run.tied ? embedding : p.at("lm_head.weight")).t());
  const at::Tensor chosen = logits.gather(2, targets.clamp_min(0).unsqueeze(2)).squeeze(2);
  return (at::logsumexp(logits, {2}) - chosen).masked_fill(targets < 0, 0).sum();
}

}  // namespace yoke::testing
