// The formulas follow the operators of the blocks. A LayerNorm keeps its input, which is the output
// of the half before it, and two numbers for each token; a product keeps its input; GELU keeps its
// input, too.
#include "core/model/gpt2_costs.hpp"

#include <algorithm>

#include "core/model/distributed_costs.hpp"
#include "yoke/tensor.hpp"

namespace yoke {

std::vector<BlockCosts> gpt2_costs(const ModelDims& d, const FamilyArgs& args, bool as_halves) {
  const int64_t item = item_size(args.param_dtype), wide = std::max<int64_t>(item, 4);
  const int64_t tokens = args.seq_len, carry = tokens * d.dim * item;
  // The FLOPs of multiplying all tokens by matrices with this many elements.
  const auto products = [&](int64_t elements) {
    return 2.0 * static_cast<double>(tokens) * static_cast<double>(elements);
  };
  const BlockCosts embedding{0, carry, 0};
  // Attention keeps the outputs of the norm and of attention, queries, keys and values, and a
  // number for each head. On average a token attends to half of the tokens.
  const BlockCosts attention{tokens * (5 * d.dim * item + 2 * item + d.heads * wide),
                             carry,
                             products(4 * d.dim * d.dim) + products(tokens * d.dim)};
  // The feed-forward layer keeps the output of the norm, and the input and output of GELU.
  const BlockCosts feed_forward{
      tokens * ((d.dim + 2 * d.ffn_dim) * item + 2 * item), carry, products(2 * d.dim * d.ffn_dim)};
  // Keeps the output of the norm and the logits, and a number for the loss.
  const BlockCosts head{
      tokens * ((d.dim + d.vocab) * item + 2 * item + wide), 0, products(d.dim * d.vocab)};

  std::vector<BlockCosts> costs{embedding};
  for (int64_t n = 0; n < d.layers; ++n) {
    if (as_halves) {
      costs.insert(costs.end(), {attention, feed_forward});
      continue;
    }
    // A layer also keeps what passes between its halves.
    costs.push_back({attention.activation_bytes + carry + feed_forward.activation_bytes,
                     carry,
                     attention.forward_flops + feed_forward.forward_flops});
  }
  costs.push_back(head);
  add_distributed_costs(d, args, as_halves, costs);
  return costs;
}

}  // namespace yoke
