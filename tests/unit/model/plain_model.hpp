// The models of core/model in elementary operators, with explicit attention matrices and an
// explicit softmax: the reference of their tests. Shares no code with them except for ModelDims.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "core/model/adapters.hpp"
#include "core/model/family.hpp"
#include "core/model/model_dims.hpp"
#include "core/model/torch_model.hpp"
#include "tests/unit/model/neutral_driver.hpp"

namespace yoke {

class PlainModel {
 public:
  // adapter_scale: factor of the products of low-rank adapters, which are added to the weights.
  PlainModel(const ModelDims& dims,
             std::map<std::string, at::Tensor> params,
             double adapter_scale = 0)
      : d_(dims), p_(std::move(params)), adapter_scale_(adapter_scale) {}

  at::Tensor loss_sum(const at::Tensor& tokens,
                      const at::Tensor& targets,
                      const at::Tensor& positions) const {
    const at::Tensor x = d_.positions > 0 ? gpt2(tokens, positions) : llama(tokens, positions);
    const char* const embedding =
        d_.positions > 0 ? "transformer.wte.weight" : "model.embed_tokens.weight";
    const at::Tensor logits = d_.tied ? at::matmul(x, at_(embedding).t()) : linear(x, "lm_head");
    const at::Tensor valid = targets.ne(-100);
    const at::Tensor nll =
        -at::log_softmax(logits, -1).gather(-1, targets.clamp_min(0).unsqueeze(-1)).squeeze(-1);
    return (nll * valid).sum();
  }

  // Returns how far each pair of a head turns from one position to the next; seq_len: length of the
  // sequences. Written from the papers, one pair at a time.
  static std::vector<double> frequencies(const ModelDims& d, int64_t seq_len) {
    const auto dim = static_cast<double>(d.head_size());
    const RopeScaling& s = d.rope;
    const auto original = static_cast<double>(s.original_positions);
    constexpr double kTurn = 6.283185307179586;
    std::vector<double> all;
    for (int64_t i = 0; i < d.head_size() / 2; ++i) {
      double theta = d.rope_theta;
      if (s.kind == RopeScaling::Kind::kDynamic && static_cast<double>(seq_len) > original) {
        const double scale = s.factor * static_cast<double>(seq_len) / original - (s.factor - 1);
        theta *= std::exp(std::log(scale) * dim / (dim - 2));
      }
      double f = std::exp(-std::log(theta) * 2 * static_cast<double>(i) / dim);
      const double turns = original * f / kTurn;
      if (s.kind == RopeScaling::Kind::kLinear) f /= s.factor;
      if (s.kind == RopeScaling::Kind::kLlama3) {
        const double keep = std::clamp((turns - s.slow) / (s.fast - s.slow), 0.0, 1.0);
        f *= keep + (1 - keep) / s.factor;
      }
      if (s.kind == RopeScaling::Kind::kYarn) {
        const auto pair = [&](double n) {
          return dim * std::log(original / (n * kTurn)) / (2 * std::log(theta));
        };
        double first = pair(s.fast), last = pair(s.slow);
        if (s.truncate) first = std::floor(first), last = std::ceil(last);
        first = std::max(first, 0.0), last = std::min(last, dim - 1);
        const double along = (static_cast<double>(i) - first) / (last - first);
        const double keep = 1 - std::clamp(along, 0.0, 1.0);
        f *= keep + (1 - keep) / s.factor;
      }
      all.push_back(f);
    }
    return all;
  }

 private:
  const at::Tensor& at_(const std::string& name) const { return p_.at(name); }
  at::Tensor biased(const at::Tensor& x, const std::string& name) const {
    return p_.count(name) > 0 ? x + at_(name) : x;
  }
  // Returns what an adapter adds to a weight [out, in]: 0 if there is none.
  at::Tensor product_of_adapter(const std::string& name) const {
    if (p_.count(name + ".lora_A.weight") == 0) return at::zeros({}, at::kDouble);
    return adapter_scale_ *
           at::matmul(at_(name + ".lora_B.weight").flatten(0, -2), at_(name + ".lora_A.weight"));
  }
  // x times the transpose of a weight [out, in], plus its bias.
  at::Tensor linear(const at::Tensor& x, const std::string& name) const {
    const at::Tensor weight = at_(name + ".weight") + product_of_adapter(name);
    return biased(at::matmul(x, weight.t()), name + ".bias");
  }
  // x times a weight [in, out], plus its bias; both may have more dims.
  at::Tensor conv1d(const at::Tensor& x, const std::string& name) const {
    const at::Tensor weight = at_(name + ".weight").flatten(1) + product_of_adapter(name).t();
    return at::matmul(x, weight) + at_(name + ".bias").flatten();
  }

  at::Tensor norm(const at::Tensor& x, const std::string& name) const {
    return x * (x.pow(2).mean(-1, true) + d_.norm_eps).rsqrt() * at_(name + ".weight");
  }
  at::Tensor layer_norm(const at::Tensor& x, const std::string& name) const {
    const at::Tensor centred = x - x.mean(-1, true);
    return centred * (centred.pow(2).mean(-1, true) + d_.norm_eps).rsqrt() * at_(name + ".weight") +
           at_(name + ".bias");
  }

  // Rotates the pairs (i, i + D/2) of x [B, S, heads, D].
  at::Tensor rotate(const at::Tensor& x, const at::Tensor& positions) const {
    const int64_t half = x.size(-1) / 2;
    const at::Tensor f = at::tensor(frequencies(d_, x.size(1)), at::kDouble).to(x.scalar_type());
    const at::Tensor angle = positions.to(x.scalar_type()).unsqueeze(-1).unsqueeze(-1) * f;
    const at::Tensor a = x.slice(-1, 0, half), b = x.slice(-1, half, 2 * half);
    return d_.rope.attention_factor *
           at::cat({a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()}, -1);
  }

  // q [B, S, heads, D], k and v [B, S, kv_heads, D]; returns [B, S, heads * D].
  at::Tensor attend(const at::Tensor& q,
                    const at::Tensor& k,
                    const at::Tensor& v,
                    int64_t window) const {
    const int64_t share = q.size(2) / k.size(2), s = q.size(1);
    const at::Tensor keys = k.repeat_interleave(share, 2), values = v.repeat_interleave(share, 2);
    const at::Tensor row = at::arange(s).unsqueeze(1), column = at::arange(s).unsqueeze(0);
    at::Tensor hidden = column > row;
    if (window > 0) hidden = hidden.logical_or(column <= row - window);
    const at::Tensor scores =
        (at::matmul(q.transpose(1, 2), keys.transpose(1, 2).transpose(-1, -2)) /
         std::sqrt(static_cast<double>(q.size(3))))
            .masked_fill(hidden, -std::numeric_limits<double>::infinity());
    return at::matmul(at::softmax(scores, -1), values.transpose(1, 2)).transpose(1, 2).flatten(2);
  }

  at::Tensor llama_attention(const at::Tensor& x,
                             const at::Tensor& positions,
                             const std::string& at_layer,
                             int64_t window) const {
    const auto project = [&](const char* name) {
      return linear(x, at_layer + name).view({x.size(0), x.size(1), -1, d_.head_size()});
    };
    at::Tensor q = project("q_proj"), k = project("k_proj");
    if (d_.qk_norm) {
      q = norm(q, at_layer + "q_norm");
      k = norm(k, at_layer + "k_norm");
    }
    return linear(attend(rotate(q, positions), rotate(k, positions), project("v_proj"), window),
                  at_layer + "o_proj");
  }

  at::Tensor llama(const at::Tensor& tokens, const at::Tensor& positions) const {
    at::Tensor x = at::embedding(at_("model.embed_tokens.weight"), tokens);
    for (int64_t n = 0; n < d_.layers; ++n) {
      const std::string layer = "model.layers." + std::to_string(n) + ".";
      x = x +
          llama_attention(
              norm(x, layer + "input_layernorm"), positions, layer + "self_attn.", d_.window(n));
      const at::Tensor y = norm(x, layer + "post_attention_layernorm");
      const at::Tensor gate = linear(y, layer + "mlp.gate_proj");
      x = x + linear(gate * at::sigmoid(gate) * linear(y, layer + "mlp.up_proj"),
                     layer + "mlp.down_proj");
    }
    return norm(x, "model.norm");
  }

  at::Tensor gelu(const at::Tensor& x) const {
    if (d_.activation == Activation::kGelu) return 0.5 * x * (1 + at::erf(x * std::sqrt(0.5)));
    constexpr double kSqrt2OverPi = 0.7978845608028654;
    return 0.5 * x * (1 + at::tanh(kSqrt2OverPi * (x + 0.044715 * x * x * x)));
  }

  at::Tensor gpt2(const at::Tensor& tokens, const at::Tensor& positions) const {
    at::Tensor x = at::embedding(at_("transformer.wte.weight"), tokens) +
                   at::embedding(at_("transformer.wpe.weight"), positions);
    for (int64_t n = 0; n < d_.layers; ++n) {
      const std::string layer = "transformer.h." + std::to_string(n) + ".";
      const auto qkv = conv1d(layer_norm(x, layer + "ln_1"), layer + "attn.c_attn")
                           .view({x.size(0), x.size(1), 3, d_.heads, -1})
                           .unbind(2);
      x = x + conv1d(attend(qkv[0], qkv[1], qkv[2], 0), layer + "attn.c_proj");
      const at::Tensor y = conv1d(layer_norm(x, layer + "ln_2"), layer + "mlp.c_fc");
      x = x + conv1d(gelu(y), layer + "mlp.c_proj");
    }
    return layer_norm(x, "transformer.ln_f");
  }

  ModelDims d_;
  std::map<std::string, at::Tensor> p_;
  double adapter_scale_;
};

struct Compared {
  double loss, expected_loss;
  double worst = 0;  // largest error of a gradient, relative to its largest element
  std::string where;
};

// Runs one step through the callbacks of YokeModel, and the plain model in fp64 on the same values.
// Parameters that would be 0 or 1 get random values first: biases, norms and the second matrices of
// adapters. Only the gradients of trainable parameters are compared.
template <class T>
Compared compare_with_plain(const ModelConfig& config, TestBatch& batch) {
  at::set_num_threads(1);  // threads would only slow down models this small
  FamilyArgs args;
  args.param_dtype = kDtype<T>;
  args.seq_len = batch.seq_len();
  const TorchModelHost host(
      builtin_family(config).make_blocks(args), args.param_dtype, /*seed=*/3, false);
  NeutralDriver<T> driver(host.model());
  std::map<std::string, at::Tensor> params;
  for (size_t i = 0; i < driver.params(); ++i) {
    const YokeParameter& p = *host.summary().params[i];
    const at::Tensor values = at::from_blob(driver.memory(i).data(),
                                            at::IntArrayRef(p.shape, p.ndim),
                                            at::CppTypeToScalarType<T>::value);
    if (driver.name(i).ends_with("bias") || driver.name(i).ends_with("lora_B.weight"))
      values.normal_(0, 0.1);
    const bool norm =
        driver.name(i).ends_with("norm.weight") || driver.name(i).find("ln_") != std::string::npos;
    if (norm && !driver.name(i).ends_with("bias")) values.normal_(1, 0.1);
    params[driver.name(i)] =
        values.to(at::kDouble, false, true).set_requires_grad(p.trainable != 0);
  }
  driver.bind_all();
  Compared out{};
  out.loss = driver.step(batch.micro(), 0.5);

  const auto ids = [&](std::vector<int64_t>& v) {
    return at::from_blob(v.data(), {batch.sequences(), batch.seq_len()}, at::kLong);
  };
  const at::Tensor loss =
      PlainModel(model_dims(config), params, config.lora.rank > 0 ? adapter_scale(config.lora) : 0)
          .loss_sum(ids(batch.tokens), ids(batch.targets), ids(batch.positions));
  out.expected_loss = loss.template item<double>();
  (loss * 0.5).backward();
  for (size_t i = 0; i < driver.params(); ++i) {
    if (host.summary().params[i]->trainable == 0) continue;
    const at::Tensor expected = params[driver.name(i)].grad();
    const at::Tensor got =
        at::from_blob(driver.grads[i].data(), expected.sizes(), at::CppTypeToScalarType<T>::value)
            .to(at::kDouble);
    const double error =
        ((got - expected).abs().max() / expected.abs().max()).template item<double>();
    if (!(error <= out.worst)) {
      out.worst = error;
      out.where = driver.name(i);
    }
  }
  return out;
}

}  // namespace yoke
