// The formulas follow the order in which the blocks run the fused operators of core/kernels, and
// autograd their backwards. Three facts matter. An operator frees what it has saved as soon as its
// backward has run. The gradients of its weights are complete then, and stay until the end of the
// pass. If they are left for later, the inputs of the products and the gradients of their outputs
// stay instead, each until its last product.
//
// Only points that can be the peak of a pass are listed; which of them is depends on the number of
// tokens, compared with the width of the model. Measuring a pass once instead would need the memory
// of a block before any rank exists. The scratch memory of attention is not counted, because it
// depends on the number of threads, nor is that of products in bf16, which oneDNN chooses (without
// AVX-512, fp32 copies of the matrices). Other operators, such as those of a GPU, may need more or
// less.
#include "core/model/llama_costs.hpp"

#include <algorithm>

#include "core/model/distributed_costs.hpp"
#include "yoke/tensor.hpp"

namespace yoke {
namespace {

// A gradient of a weight that is computed after the rest of a backward.
struct LaterGradient {
  int64_t weight;  // elements of the weight
  int64_t freed;   // elements of a token that nothing needs after this product
};

// The costs of each kind of block. Arguments count elements: those of a token, or those of
// matrices.
class Costs {
 public:
  Costs(const ModelDims& dims, const FamilyArgs& args)
      : d(dims),
        q(d.q_dim()),
        kv(d.kv_dim()),
        item(item_size(args.param_dtype)),
        wide(std::max<int64_t>(item, 4)),
        tokens(args.seq_len) {}

  BlockCosts embedding() const;
  BlockCosts attention(int64_t layer) const;
  BlockCosts feed_forward() const;
  BlockCosts layer(int64_t layer) const;
  BlockCosts head() const;

 private:
  int64_t bytes(int64_t per_token) const { return tokens * per_token * item; }
  YokePassBytes at(int32_t pass, int64_t per_token, int64_t of_weights) const {
    return {pass, 0, bytes(per_token), of_weights * item};
  }
  // Appends a point for each of the gradients, in the order in which they are computed.
  void add_later(const std::vector<LaterGradient>& gradients, BlockCosts& costs) const {
    LaterGradient sum{0, 0};
    for (const LaterGradient& gradient : gradients) {
      sum.weight += gradient.weight;
      costs.pass_bytes.push_back(at(YOKE_FORECAST_BACKWARD_WEIGHT, -sum.freed, sum.weight));
      sum.freed += gradient.freed;
    }
  }
  // Returns the FLOPs of multiplying all tokens by matrices with `elements` elements in total.
  double products(int64_t elements) const {
    return 2.0 * static_cast<double>(tokens) * static_cast<double>(elements);
  }

  // Returns the number of keys to which a token attends on average, with a window or without.
  double attended(int64_t window) const {
    const auto length = static_cast<double>(tokens);
    if (window == 0 || window >= tokens) return length / 2;
    const auto w = static_cast<double>(window);
    return w - w * w / (2 * length);
  }

  const ModelDims& d;
  const int64_t q, kv;       // elements of the queries, and of the keys, of a token
  const int64_t item, wide;  // bytes of an element, and of a number in at least fp32
  const int64_t tokens;
};

// The gradient is added up in at least fp32, from an fp32 copy of the gradient of the output.
BlockCosts Costs::embedding() const {
  const int64_t weight = d.vocab * d.dim;
  BlockCosts costs{0, bytes(d.dim), 0};
  for (const int32_t pass : {YOKE_FORECAST_BACKWARD, YOKE_FORECAST_BACKWARD_INPUT}) {
    if (wide == item) {
      costs.pass_bytes.push_back(at(pass, 0, weight));
    } else {
      costs.pass_bytes.push_back({pass, 0, tokens * d.dim * wide, weight * wide});
      costs.pass_bytes.push_back({pass, 0, 0, weight * (wide + item)});
    }
  }
  return costs;
}

// Keeps the outputs of the norm and of attention, queries, keys and values, and in fp32 a number
// for the norm and for each head. Attention is causal: on average a token attends to half of the
// tokens, with one product for keys and one for values. Norms of queries and keys keep these as
// they were before, and a number for each head. What their passes need is not known.
BlockCosts Costs::attention(int64_t layer) const {
  const int64_t weights = 2 * d.dim * (q + kv);
  BlockCosts costs{
      tokens * ((d.dim + 2 * (q + kv)) * item + (1 + d.heads) * wide),
      bytes(d.dim),
      products(weights) + 4 * static_cast<double>(tokens * q) * attended(d.window(layer)),
      {// All that is kept, with queries and keys before their rotation, and the output.
       at(YOKE_FORECAST_FORWARD, 2 * d.dim + 3 * (q + kv), 0),
       // The gradients of attention's output, queries, keys and values.
       at(YOKE_FORECAST_BACKWARD, 2 * (q + kv), d.dim * q),
       // The gradient of the norm's output. Those of queries, keys and values have replaced them,
       // and the output of attention has been freed.
       at(YOKE_FORECAST_BACKWARD, d.dim - q, weights),
       at(YOKE_FORECAST_BACKWARD_INPUT, 2 * (q + kv), 0),
       // With narrow heads: the gradients of the norm's output and input. Those of queries, keys
       // and values have replaced these, and the numbers for the heads have been freed.
       {YOKE_FORECAST_BACKWARD_INPUT, 0, bytes(2 * d.dim) - tokens * d.heads * wide, 0}}};
  // Attention's output, then queries, keys and values.
  add_later({{d.dim * q, q}, {d.dim * q, q}, {d.dim * kv, kv}, {d.dim * kv, kv}}, costs);
  if (d.qk_norm) {
    costs.activation_bytes += tokens * ((q + kv) * item + (d.heads + d.kv_heads) * wide);
    costs.pass_bytes.clear();
  }
  return costs;
}

// Keeps the output of the norm, gate, up and their product, and a number for the norm.
BlockCosts Costs::feed_forward() const {
  const int64_t weight = d.dim * d.ffn_dim;
  BlockCosts costs{tokens * ((d.dim + 3 * d.ffn_dim) * item + wide),
                   bytes(d.dim),
                   products(3 * weight),
                   {at(YOKE_FORECAST_FORWARD, 2 * d.dim + 3 * d.ffn_dim, 0),
                    // The gradients of the product, which has been freed, of gate and of up.
                    at(YOKE_FORECAST_BACKWARD, 2 * d.ffn_dim, weight),
                    // The gradient of the norm's output. Those of gate and up have replaced them.
                    at(YOKE_FORECAST_BACKWARD, d.dim - d.ffn_dim, 3 * weight),
                    at(YOKE_FORECAST_BACKWARD_INPUT, 3 * d.ffn_dim, 0)}};
  add_later({{weight, d.ffn_dim}, {weight, d.ffn_dim}, {weight, d.ffn_dim}}, costs);
  return costs;
}

// A layer also keeps what passes between its halves. Its backward begins with that of the second
// half, and what that half has kept is free when the first half has its peak.
BlockCosts Costs::layer(int64_t layer) const {
  const BlockCosts first = attention(layer), second = feed_forward();
  const int64_t matrices = 2 * d.dim * (q + kv) + 3 * d.dim * d.ffn_dim;
  BlockCosts costs{first.activation_bytes + first.carry_bytes + second.activation_bytes,
                   second.carry_bytes,
                   first.forward_flops + second.forward_flops,
                   {at(YOKE_FORECAST_FORWARD, 2 * d.dim + 3 * (q + kv), 0),
                    at(YOKE_FORECAST_FORWARD, 3 * (d.dim + d.ffn_dim), 0),
                    at(YOKE_FORECAST_BACKWARD, 2 * d.ffn_dim, d.dim * d.ffn_dim),
                    at(YOKE_FORECAST_BACKWARD, d.dim - d.ffn_dim, 3 * d.dim * d.ffn_dim),
                    at(YOKE_FORECAST_BACKWARD, -q - 3 * d.ffn_dim, matrices),
                    at(YOKE_FORECAST_BACKWARD_INPUT, 3 * d.ffn_dim, 0),
                    at(YOKE_FORECAST_BACKWARD_INPUT, 2 * (q + kv), 0)}};
  // The last product of a half also frees what the norm or the half has passed on.
  const int64_t wide_weight = d.dim * d.ffn_dim;
  add_later({{wide_weight, d.ffn_dim},
             {wide_weight, d.ffn_dim},
             {wide_weight, d.ffn_dim + d.dim},
             {d.dim * q, q + d.dim},
             {d.dim * q, q},
             {d.dim * kv, kv},
             {d.dim * kv, kv}},
            costs);
  if (d.qk_norm) costs.pass_bytes.clear();
  return costs;
}

// Keeps the output of the norm and the logits, and in fp32 a number for each of norm and loss.
BlockCosts Costs::head() const {
  const int64_t weight = d.dim * d.vocab;
  return {tokens * ((d.dim + d.vocab) * item + 2 * wide),
          0,
          products(weight),
          {at(YOKE_FORECAST_FORWARD, d.dim + d.vocab, 0),
           // The gradient of the logits overwrites the logits. The gradient of the norm's output is
           // new memory. If products are delayed, the norm's output is still needed when the
           // gradient of its input exists, too.
           at(YOKE_FORECAST_BACKWARD, d.dim, weight),
           at(YOKE_FORECAST_BACKWARD_INPUT, 2 * d.dim, 0),
           at(YOKE_FORECAST_BACKWARD_WEIGHT, 0, weight)}};
}

}  // namespace

std::vector<BlockCosts> llama_costs(const ModelDims& d, const FamilyArgs& args, bool as_halves) {
  const Costs of(d, args);
  std::vector<BlockCosts> costs{of.embedding()};
  for (int64_t n = 0; n < d.layers; ++n) {
    if (as_halves) {
      costs.insert(costs.end(), {of.attention(n), of.feed_forward()});
    } else {
      costs.push_back(of.layer(n));
    }
  }
  costs.push_back(of.head());
  add_distributed_costs(d, args, as_halves, costs);
  return costs;
}

}  // namespace yoke
