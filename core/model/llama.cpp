// Ordinary modules, built on the operators of core/kernels/ops.hpp. These operators are
// differentiable and accept wrapped tensors, so the same code runs on one rank, sharded, and with
// tensor or context parallelism. Two rules follow. A module takes the number of heads from the
// shape of a tensor, because a rank may hold only some of them. Positions are an input, because a
// rank may hold only some of the tokens.
//
// Besides the modules, the file describes them to the backends: initial values, tensor-parallel
// hints, and what the blocks cost (llama_costs.cpp).
#include "core/model/llama.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>

#include "core/model/adapters.hpp"
#include "core/model/llama_costs.hpp"
#include "core/model/modules.hpp"
#include "core/model/rope.hpp"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using torch::nn::Module;

struct Attention : Module {
  Attention(const ModelDims& d, int64_t layer, at::ScalarType dtype)
      : head_dim(d.head_size()), window(d.window(layer)) {
    const auto linear = [&](const char* name, int64_t in, int64_t out, bool bias) {
      return register_module(name, std::make_shared<Linear>(in, out, dtype, bias));
    };
    q_proj = linear("q_proj", d.dim, d.q_dim(), d.qkv_bias);
    k_proj = linear("k_proj", d.dim, d.kv_dim(), d.qkv_bias);
    v_proj = linear("v_proj", d.dim, d.kv_dim(), d.qkv_bias);
    o_proj = linear("o_proj", d.q_dim(), d.dim, d.o_bias);
    if (!d.qk_norm) return;
    q_norm = register_module("q_norm", std::make_shared<RmsNorm>(head_dim, d.norm_eps, dtype));
    k_norm = register_module("k_norm", std::make_shared<RmsNorm>(head_dim, d.norm_eps, dtype));
  }

  // Returns residual + attention(x).
  at::Tensor forward(const at::Tensor& residual,
                     const at::Tensor& x,
                     const RopeCache::Angles& a,
                     const ops::Documents& documents) const {
    auto qkv = ops::linears(
        x, {with_lifetime(*q_proj, 1), with_lifetime(*k_proj, q_norm ? 2 : 1), v_proj->matrix()});
    // The number of heads is inferred (-1), because with tensor parallelism a rank holds only some.
    for (at::Tensor& t : qkv) t = t.view({t.size(0), t.size(1), -1, head_dim});
    if (q_norm) {
      qkv[0] = (*q_norm)(qkv[0]);
      qkv[1] = (*k_norm)(qkv[1]);
    }
    const auto [q, k] = ops::rotary(qkv[0], qkv[1], a.cos, a.sin);
    return ops::linear_add(
        residual, ops::causal_attention(q, k, qkv[2], window, documents), o_proj->matrix());
  }

  // Queries and keys are not needed after their rotation, but values are. Norms of queries and keys
  // keep their inputs, and would have to copy them if they were parts of one tensor.
  static ops::Matrix with_lifetime(const Linear& linear, int lifetime) {
    ops::Matrix matrix = linear.matrix();
    matrix.lifetime = lifetime;
    return matrix;
  }

  int64_t head_dim, window;
  std::shared_ptr<Linear> q_proj, k_proj, v_proj, o_proj;
  std::shared_ptr<RmsNorm> q_norm, k_norm;  // null unless the family has them
};

struct FeedForward : Module {
  FeedForward(const ModelDims& d, at::ScalarType dtype) {
    const auto linear = [&](const char* name, int64_t in, int64_t out) {
      return register_module(name, std::make_shared<Linear>(in, out, dtype, d.mlp_bias));
    };
    gate_proj = linear("gate_proj", d.dim, d.ffn_dim);
    up_proj = linear("up_proj", d.dim, d.ffn_dim);
    down_proj = linear("down_proj", d.ffn_dim, d.dim);
  }

  // Returns residual + feed_forward(x).
  at::Tensor forward(const at::Tensor& residual, const at::Tensor& x) const {
    const auto hidden = ops::linears(x, {gate_proj->matrix(), up_proj->matrix()});
    return ops::linear_add(residual, ops::swiglu(hidden[0], hidden[1]), down_proj->matrix());
  }

  std::shared_ptr<Linear> gate_proj, up_proj, down_proj;
};

// The first half of a layer.
struct AttentionHalf : Module {
  AttentionHalf(const ModelDims& d,
                int64_t layer,
                at::ScalarType dtype,
                std::shared_ptr<RopeCache> shared_rope)
      : rope(std::move(shared_rope)) {
    input_layernorm =
        register_module("input_layernorm", std::make_shared<RmsNorm>(d.dim, d.norm_eps, dtype));
    self_attn = register_module("self_attn", std::make_shared<Attention>(d, layer, dtype));
  }

  at::Tensor forward(const at::Tensor& x, const TorchInputs& in) const {
    const RopeCache::Angles& angles = rope->angles(input(in, "positions"), x.scalar_type());
    const auto [norm, residual] = input_layernorm->with_residual(x);
    return self_attn->forward(residual, norm, angles, documents_of(in));
  }

  std::shared_ptr<RopeCache> rope;
  std::shared_ptr<RmsNorm> input_layernorm;
  std::shared_ptr<Attention> self_attn;
};

// The second half of a layer.
struct FeedForwardHalf : Module {
  FeedForwardHalf(const ModelDims& d, at::ScalarType dtype) {
    post_attention_layernorm = register_module("post_attention_layernorm",
                                               std::make_shared<RmsNorm>(d.dim, d.norm_eps, dtype));
    mlp = register_module("mlp", std::make_shared<FeedForward>(d, dtype));
  }

  at::Tensor forward(const at::Tensor& x) const {
    const auto [norm, residual] = post_attention_layernorm->with_residual(x);
    return mlp->forward(residual, norm);
  }

  std::shared_ptr<RmsNorm> post_attention_layernorm;
  std::shared_ptr<FeedForward> mlp;
};

// Returns how a parameter is initialised.
ParamInit initial(const std::string& name, int64_t layers) {
  if (name.ends_with("norm.weight")) return {ParamInit::kConstant, 1.0};
  if (name.ends_with(".bias")) return {ParamInit::kConstant, 0.0};
  const bool residual = name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight");
  return matrix_init(residual, layers);
}

// Returns how tensor parallelism may cut a parameter, after torchtitan's plan for Llama. Products
// cut along their outputs and along their inputs alternate, so that only the residual stream is
// communicated. A tied head has the hint of the embedding.
TpHint tp_hint(const std::string& name, const ModelDims& d) {
  const std::pair<const char*, TpHint> hints[] = {
      {"embed_tokens.weight", TpHint::along(0, d.vocab)},
      {"q_proj.weight", TpHint::along(0, d.heads)},
      {"k_proj.weight", TpHint::along(0, d.kv_heads)},
      {"v_proj.weight", TpHint::along(0, d.kv_heads)},
      {"o_proj.weight", TpHint::along(1, d.heads)},
      {"gate_proj.weight", TpHint::along(0, d.ffn_dim)},
      {"up_proj.weight", TpHint::along(0, d.ffn_dim)},
      {"down_proj.weight", TpHint::along(1, d.ffn_dim)},
      {"lm_head.weight", TpHint::along(0, d.vocab)},
      {"norm.weight", TpHint::whole()},
      {"q_proj.bias", TpHint::along(0, d.heads)},
      {"k_proj.bias", TpHint::along(0, d.kv_heads)},
      {"v_proj.bias", TpHint::along(0, d.kv_heads)},
      {"o_proj.bias", TpHint::whole()},
      {"gate_proj.bias", TpHint::along(0, d.ffn_dim)},
      {"up_proj.bias", TpHint::along(0, d.ffn_dim)},
      {"down_proj.bias", TpHint::whole()},
  };
  for (const auto& [end, hint] : hints) {
    if (name.ends_with(end)) return hint;
  }
  throw Error(YOKE_INTERNAL, concat("no tensor-parallel hint for '", name, "'"));
}

// What the matrices that are multiplied by the same input keep of it. rowwise has a scale for each
// column, which the sequences of a micro-batch share, so the bytes are exact for micro-batches of
// one sequence.
struct InputUsers {
  InputUsers(const std::vector<std::shared_ptr<Linear>>& users, const FamilyArgs& args)
      : elements(args.seq_len * users[0]->weight.size(1)),
        bytes(elements * item_size(args.param_dtype)),
        scale_bytes(item_size(YOKE_F32) * users[0]->weight.size(1)) {
    for (const auto& user : users) ++count[static_cast<size_t>(user->product)];
  }
  size_t with(ops::Product product) const { return count[static_cast<size_t>(product)]; }
  // Returns true if no product keeps the input itself. distributed: see fp8_linear.cpp.
  bool all_pack(bool distributed) const {
    return with(ops::Product::kPlain) == 0 && with(ops::Product::kRowwiseGwHp) == 0 &&
           (!distributed || with(ops::Product::kRowwise) == 0);
  }
  // Returns the bytes of the fp8 numbers that products keep.
  int64_t packed(bool distributed) const {
    if (with(ops::Product::kTensorwise) > 0) return elements;
    return with(ops::Product::kRowwise) > 0 && !distributed ? elements + scale_bytes : 0;
  }
  int64_t elements, bytes, scale_bytes;  // size of the input
  std::array<size_t, 4> count{};         // number of matrices with each product
};

// Adds to a block's costs how the inputs of products change if these keep fp8 numbers.
// otherwise_kept: an operator other than products keeps the input, too.
void count_input(const InputUsers& users, bool otherwise_kept, BlockCosts& costs) {
  costs.activation_bytes += users.packed(/*distributed=*/false);
  if (users.all_pack(/*distributed=*/false) && !otherwise_kept)
    costs.activation_bytes -= users.bytes;
}

// Adds the same to the costs with distributed tensors, where no other operator keeps an input. A
// row that is gathered for a product in fp8 does not stay. cut: how the input is cut.
void count_distributed_input(const InputUsers& users, int64_t CutBytes::*cut, CutBytes& kept) {
  kept.*cut += users.packed(/*distributed=*/true);
  if (users.all_pack(/*distributed=*/true)) kept.*cut -= users.bytes;
  if (users.with(ops::Product::kPlain) == 0 && cut == &CutBytes::stream) kept.inputs -= users.bytes;
}

void count_inputs(BlockList& list, const FamilyArgs& args) {
  for (size_t b = 0; b < list.blocks.size(); ++b) {
    BlockCosts& costs = list.costs[b];
    CutBytes& kept = costs.distributed->kept;
    const auto count = [&](const std::vector<std::shared_ptr<Linear>>& linears,
                           int64_t CutBytes::*cut,
                           bool otherwise_kept = false) {
      const InputUsers users(linears, args);
      count_input(users, otherwise_kept, costs);
      count_distributed_input(users, cut, kept);
    };
    for (const auto& module : list.blocks[b].module->modules()) {
      if (const auto* a = dynamic_cast<const Attention*>(module.get())) {
        count({a->q_proj, a->k_proj, a->v_proj}, &CutBytes::stream);
        count({a->o_proj}, &CutBytes::parts, /*otherwise_kept=*/true);
      } else if (const auto* f = dynamic_cast<const FeedForward*>(module.get())) {
        count({f->gate_proj, f->up_proj}, &CutBytes::stream);
        count({f->down_proj}, &CutBytes::parts);
      } else if (const auto* head = dynamic_cast<const Head<RmsNorm>*>(module.get())) {
        count({head->lm_head}, &CutBytes::stream);
      }
    }
  }
}

BlockList make_blocks(const ModelConfig& model,
                      const PrecisionConfig& precision,
                      const FamilyArgs& args) {
  const ModelDims d = model_dims(model);
  const at::ScalarType dtype = scalar_type(args.param_dtype);
  const bool as_halves = model.blocks == "half";
  BlockList list;
  list.costs = llama_costs(d, args, as_halves);
  if (!as_halves) list.more_blocks = "model.blocks = \"half\"";
  auto embedding = std::make_shared<Embedding>(d.vocab, d.dim, dtype);
  add_block(list,
            {"model.embed_tokens",
             embedding,
             [embedding](const at::Tensor&, const TorchInputs& in) {
               return (*embedding)(input(in, "tokens"));
             }},
            "model.embed_tokens");
  auto rope = std::make_shared<RopeCache>(d, args.seq_len);
  for (int64_t n = 0; n < d.layers; ++n) {
    const auto first = std::make_shared<AttentionHalf>(d, n, dtype, rope);
    const auto second = std::make_shared<FeedForwardHalf>(d, dtype);
    const auto attention = [first](const at::Tensor& x, const TorchInputs& in) {
      return first->forward(x, in);
    };
    const auto feed_forward = [second](const at::Tensor& x, const TorchInputs&) {
      return second->forward(x);
    };
    add_layer(list,
              concat("model.layers.", n),
              {first, attention},
              {second, feed_forward},
              {".self_attn", ".mlp"},
              as_halves);
  }
  auto head =
      std::make_shared<Head<RmsNorm>>(std::array{"model", "norm"}, d, dtype, embedding->weight);
  add_head(list, head, args.seq_len);
  choose_products(list, precision);
  count_inputs(list, args);
  list.init = [layers = d.layers](const std::string& name) { return initial(name, layers); };
  list.tp = [d](const std::string& name) { return tp_hint(name, d); };
  add_adapters(list, model.lora);
  if (!model.from.empty())
    open_stored(list, model.from, "model.embed_tokens.weight", d.tied, "model.");
  open_adapters(list, model);
  return list;
}

}  // namespace

Family llama_family(const ModelConfig& config, const PrecisionConfig& precision) {
  return {[=](const FamilyArgs& args) { return make_blocks(config, precision, args); },
          [config](const FamilyArgs& args) { return model_info(config, args.seq_len); }};
}

}  // namespace yoke
