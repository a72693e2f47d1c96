// Operators on distributed tensors are compositions of ATen operators (core/kernels/ops.hpp), each
// of which is a node of autograd that keeps its own operands. They keep more than the fused
// operators do: SwiGLU also keeps silu(gate), an RMSNorm the normalised rows and, in 16-bit types,
// its input in fp32. Attention's output exists twice, because the product after it needs the heads
// of a token side by side. The loss is one node that keeps the logits, in at least fp32. With
// sequence parallelism, a row that has been gathered for a product stays whole until the gradient
// of the weight has been computed.
//
// As in llama_costs.cpp, only points that can be the peak of a pass are listed.
#include "core/model/distributed_costs.hpp"

#include <algorithm>
#include <initializer_list>

#include "yoke/tensor.hpp"

namespace yoke {
namespace {

CutBytes operator+(const CutBytes& a, const CutBytes& b) {
  return {a.stream + b.stream,
          a.parts + b.parts,
          a.inputs + b.inputs,
          a.logits + b.logits,
          a.whole + b.whole,
          a.weights + b.weights};
}

class Costs {
 public:
  Costs(const ModelDims& dims, const FamilyArgs& args)
      : d(dims),
        q(d.q_dim()),
        kv(d.kv_dim()),
        item(item_size(args.param_dtype)),
        wide(std::max<int64_t>(item, 4)),
        tokens(args.seq_len) {}

  DistributedCosts embedding() const;
  DistributedCosts attention() const;
  DistributedCosts feed_forward() const;
  DistributedCosts layer() const;
  DistributedCosts head() const;

 private:
  bool is_gpt2() const { return d.positions > 0; }
  int64_t bytes(int64_t per_token) const { return tokens * per_token * item; }
  int64_t attention_weights() const { return 2 * d.dim * (q + kv); }
  int64_t hidden() const { return d.dim * d.ffn_dim; }
  int64_t feed_forward_weights() const { return (is_gpt2() ? 2 : 3) * hidden(); }
  // The results that a feed-forward layer keeps: the input and the output of GELU, or gate, its
  // SiLU, up and their product.
  int64_t hidden_kept() const { return (is_gpt2() ? 2 : 4) * d.ffn_dim; }
  // What the products with the input of a feed-forward layer give.
  int64_t hidden_made() const { return (is_gpt2() ? 1 : 2) * d.ffn_dim; }

  int64_t norm() const;  // bytes that a norm of the residual stream keeps, with its output
  // A point of a pass; the numbers are elements of a token, or of weights.
  CutPass at(int32_t pass, const CutBytes& elements) const {
    return {pass,
            {bytes(elements.stream),
             bytes(elements.parts),
             bytes(elements.inputs),
             bytes(elements.logits),
             bytes(elements.whole),
             elements.weights * item}};
  }
  // GPT-2 does not cut an odd vocabulary. Its logits are then cut along the sequence, as is the
  // input of the product, which is not gathered.
  bool cuts_vocabulary() const { return !is_gpt2() || d.vocab % 2 == 0; }
  CutBytes logits(int64_t per_element) const {
    const int64_t all = tokens * d.vocab * per_element;
    return cuts_vocabulary() ? CutBytes{.logits = all} : CutBytes{.stream = all};
  }

  const ModelDims& d;
  const int64_t q, kv;       // elements of the queries, and of the keys, of a token
  const int64_t item, wide;  // bytes of an element, and of a number in at least fp32
  const int64_t tokens;
};

int64_t Costs::norm() const {
  if (is_gpt2()) return tokens * (d.dim + 2) * item;  // ATen has a node for it
  const int64_t input = item == wide ? 0 : wide;
  return tokens * (d.dim * (item + wide + input) + wide);
}

// Every rank looks up the rows that it has; their sum is computed by the first reader.
DistributedCosts Costs::embedding() const {
  const int64_t all = d.vocab * d.dim;
  return {{},
          {.whole = bytes(d.dim)},
          {at(YOKE_FORECAST_BACKWARD, {.whole = 2 * d.dim, .weights = all}),
           at(YOKE_FORECAST_BACKWARD_INPUT, {.whole = 2 * d.dim, .weights = all})}};
}

DistributedCosts Costs::attention() const {
  const int64_t weights = attention_weights();
  DistributedCosts costs{
      {.stream = norm(),
       .parts = bytes(3 * q + 2 * kv) + tokens * d.heads * wide,
       .inputs = bytes(d.dim)},
      {.stream = bytes(d.dim)},
      {at(YOKE_FORECAST_FORWARD, {.stream = 2 * d.dim, .parts = 3 * (q + kv), .inputs = d.dim}),
       // The gradients of attention's output, queries, keys and values, and the whole gradient of
       // the block's output.
       at(YOKE_FORECAST_BACKWARD, {.parts = 2 * (q + kv), .inputs = d.dim, .weights = d.dim * q}),
       // The partial gradients of the norm's output. What attention has kept has been freed.
       at(YOKE_FORECAST_BACKWARD, {.parts = -2 * q, .whole = 2 * d.dim, .weights = weights}),
       at(YOKE_FORECAST_BACKWARD_INPUT, {.parts = 2 * (q + kv), .inputs = d.dim}),
       at(YOKE_FORECAST_BACKWARD_WEIGHT, {.weights = d.dim * q}),
       at(YOKE_FORECAST_BACKWARD_WEIGHT, {.parts = -q, .inputs = -d.dim, .weights = weights})}};
  // Norms of queries and keys keep these in fp32, as they are before and after.
  if (d.qk_norm)
    costs.kept.parts += 2 * tokens * ((q + kv) * wide) + tokens * (d.heads + d.kv_heads) * wide;
  return costs;
}

DistributedCosts Costs::feed_forward() const {
  const int64_t weights = feed_forward_weights(), kept = hidden_kept(), made = hidden_made();
  return {
      {.stream = norm(), .parts = bytes(kept), .inputs = bytes(d.dim)},
      {.stream = bytes(d.dim)},
      {at(YOKE_FORECAST_FORWARD, {.stream = 2 * d.dim, .parts = kept, .inputs = d.dim}),
       at(YOKE_FORECAST_BACKWARD, {.parts = made, .inputs = d.dim, .weights = hidden()}),
       at(YOKE_FORECAST_BACKWARD, {.parts = made - kept, .whole = 2 * d.dim, .weights = weights}),
       at(YOKE_FORECAST_BACKWARD_INPUT, {.parts = made + d.ffn_dim, .inputs = d.dim}),
       at(YOKE_FORECAST_BACKWARD_WEIGHT, {.weights = hidden()}),
       at(YOKE_FORECAST_BACKWARD_WEIGHT, {.parts = -made, .weights = weights})}};
}

// A layer also keeps what passes between its halves, unless its second norm keeps that in fp32. Its
// backward begins with that of the second half, and what that half has kept is free when the first
// half has its peak.
DistributedCosts Costs::layer() const {
  const DistributedCosts first = attention(), second = feed_forward();
  DistributedCosts costs{first.kept + second.kept, second.carry, second.passes};
  if (is_gpt2() || item == wide) costs.kept.stream += bytes(d.dim);
  const CutBytes freed{
      .parts = -hidden_kept(), .inputs = -d.dim, .weights = feed_forward_weights()};
  costs.passes.push_back(at(YOKE_FORECAST_FORWARD, {.stream = 2 * d.dim, .parts = 3 * (q + kv)}));
  costs.passes.push_back(
      at(YOKE_FORECAST_BACKWARD,
         freed + CutBytes{.parts = -2 * q, .whole = 2 * d.dim, .weights = attention_weights()}));
  costs.passes.push_back(
      at(YOKE_FORECAST_BACKWARD_INPUT, {.parts = 2 * (q + kv), .inputs = d.dim}));
  costs.passes.push_back(at(YOKE_FORECAST_BACKWARD_WEIGHT,
                            {.parts = -hidden_made() - q,
                             .inputs = -2 * d.dim,
                             .weights = feed_forward_weights() + attention_weights()}));
  return costs;
}

DistributedCosts Costs::head() const {
  const int64_t weights = d.dim * d.vocab, copy = item == wide ? 0 : wide;
  const int64_t inputs = cuts_vocabulary() ? d.dim : 0;
  const auto point = [&](int32_t pass, const CutBytes& elements, int64_t per_logit) {
    const CutPass of_tokens = at(pass, elements);
    return CutPass{pass, of_tokens.bytes + logits(per_logit)};
  };
  return {CutBytes{.stream = norm() + tokens * wide, .inputs = bytes(inputs)} + logits(wide),
          {},
          {point(YOKE_FORECAST_FORWARD, {.stream = 2 * d.dim, .inputs = inputs}, item + copy),
           point(YOKE_FORECAST_BACKWARD, {}, wide),  // the gradient of the logits
           point(YOKE_FORECAST_BACKWARD, {.whole = 2 * d.dim, .weights = weights}, item - wide),
           point(YOKE_FORECAST_BACKWARD_INPUT, {}, wide),
           point(YOKE_FORECAST_BACKWARD_WEIGHT, {.weights = weights}, 0)}};
}

}  // namespace

void add_distributed_costs(const ModelDims& d,
                           const FamilyArgs& args,
                           bool as_halves,
                           std::vector<BlockCosts>& costs) {
  const Costs of(d, args);
  costs.front().distributed = of.embedding();
  for (size_t b = 1; b + 1 < costs.size(); ++b) {
    const bool first = b % 2 == 1;
    costs[b].distributed = !as_halves ? of.layer() : first ? of.attention() : of.feed_forward();
  }
  costs.back().distributed = of.head();
}

}  // namespace yoke
