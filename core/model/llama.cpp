// Ordinary modules, built on the operators of core/kernels/ops.hpp. These operators are
// differentiable and accept wrapped tensors, so the same code runs on one rank, sharded, and with
// tensor or context parallelism. Two rules follow. A module takes the number of heads from the
// shape of a tensor, because a rank may hold only some of them. Positions are an input, because a
// rank may hold only some of the tokens.
//
// Besides the modules, the family describes itself to the backends: initial values, tensor-parallel
// hints, and what the blocks cost (llama_costs.cpp).
#include "core/model/llama.hpp"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>

#include "core/checkpoint/hf_weights.hpp"
#include "core/kernels/ops.hpp"
#include "core/model/fp8_choice.hpp"
#include "core/model/hf_config.hpp"
#include "core/model/llama_costs.hpp"
#include "core/model/rope.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using torch::nn::Module;

// A module with one parameter. It allocates no memory and draws no random numbers: backends provide
// the memory, and the initial values come from core/model/init.hpp. With `tied` it shares the
// parameter of another module.
struct Weight : Module {
  Weight(at::IntArrayRef shape, at::ScalarType dtype) {
    weight = register_parameter("weight", unallocated(shape, dtype));
  }
  explicit Weight(const at::Tensor& tied) { weight = register_parameter("weight", tied); }
  at::Tensor weight;
};

struct Linear : Weight {
  Linear(int64_t in, int64_t out, at::ScalarType dtype) : Weight({out, in}, dtype) {}
  explicit Linear(const at::Tensor& tied) : Weight(tied) {}
  ops::Matrix matrix() const { return {weight, product}; }
  ops::Product product = ops::Product::kPlain;
};

struct Embedding : Weight {
  Embedding(int64_t rows, int64_t dim, at::ScalarType dtype) : Weight({rows, dim}, dtype) {}
  at::Tensor operator()(const at::Tensor& ids) const { return ops::embedding(weight, ids); }
};

struct RmsNorm : Weight {
  RmsNorm(int64_t dim, double norm_eps, at::ScalarType dtype)
      : Weight({dim}, dtype), eps(norm_eps) {}
  at::Tensor operator()(const at::Tensor& x) const { return ops::rms_norm(x, weight, eps); }
  double eps;
};

struct Attention : Module {
  Attention(const LlamaDims& d, at::ScalarType dtype) : head_dim(d.dim / d.heads) {
    q_proj = register_module("q_proj", std::make_shared<Linear>(d.dim, d.heads * head_dim, dtype));
    k_proj =
        register_module("k_proj", std::make_shared<Linear>(d.dim, d.kv_heads * head_dim, dtype));
    v_proj =
        register_module("v_proj", std::make_shared<Linear>(d.dim, d.kv_heads * head_dim, dtype));
    o_proj = register_module("o_proj", std::make_shared<Linear>(d.heads * head_dim, d.dim, dtype));
  }

  // Returns residual + attention(x).
  at::Tensor forward(const at::Tensor& residual,
                     const at::Tensor& x,
                     const RopeCache::Angles& a) const {
    auto qkv = ops::linears(x, {q_proj->matrix(), k_proj->matrix(), v_proj->matrix()});
    // The number of heads is inferred (-1), because with tensor parallelism a rank holds only some.
    for (at::Tensor& t : qkv) t = t.view({t.size(0), t.size(1), -1, head_dim});
    const at::Tensor q = ops::rotary(qkv[0], a.cos, a.sin), k = ops::rotary(qkv[1], a.cos, a.sin);
    return ops::linear_add(residual, ops::causal_attention(q, k, qkv[2]), o_proj->matrix());
  }

  int64_t head_dim;
  std::shared_ptr<Linear> q_proj, k_proj, v_proj, o_proj;
};

struct FeedForward : Module {
  FeedForward(const LlamaDims& d, at::ScalarType dtype) {
    gate_proj = register_module("gate_proj", std::make_shared<Linear>(d.dim, d.ffn_dim, dtype));
    up_proj = register_module("up_proj", std::make_shared<Linear>(d.dim, d.ffn_dim, dtype));
    down_proj = register_module("down_proj", std::make_shared<Linear>(d.ffn_dim, d.dim, dtype));
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
  AttentionHalf(const LlamaDims& d, at::ScalarType dtype, std::shared_ptr<RopeCache> shared_rope)
      : rope(std::move(shared_rope)) {
    input_layernorm =
        register_module("input_layernorm", std::make_shared<RmsNorm>(d.dim, d.norm_eps, dtype));
    self_attn = register_module("self_attn", std::make_shared<Attention>(d, dtype));
  }

  at::Tensor forward(const at::Tensor& x, const at::Tensor& positions) const {
    const RopeCache::Angles& angles = rope->angles(positions, x.scalar_type());
    return self_attn->forward(x, (*input_layernorm)(x), angles);
  }

  std::shared_ptr<RopeCache> rope;
  std::shared_ptr<RmsNorm> input_layernorm;
  std::shared_ptr<Attention> self_attn;
};

// The second half of a layer.
struct FeedForwardHalf : Module {
  FeedForwardHalf(const LlamaDims& d, at::ScalarType dtype) {
    post_attention_layernorm = register_module("post_attention_layernorm",
                                               std::make_shared<RmsNorm>(d.dim, d.norm_eps, dtype));
    mlp = register_module("mlp", std::make_shared<FeedForward>(d, dtype));
  }

  at::Tensor forward(const at::Tensor& x) const {
    return mlp->forward(x, (*post_attention_layernorm)(x));
  }

  std::shared_ptr<RmsNorm> post_attention_layernorm;
  std::shared_ptr<FeedForward> mlp;
};

// The parameters of a whole layer, with the same names as in its halves.
struct Layer : Module {
  Layer(const Module& first, const Module& second) {
    for (const Module* half : {&first, &second}) {
      for (const auto& child : half->named_children()) register_module(child.key(), child.value());
    }
  }
};

// The final norm and the head. The nesting gives the names model.norm.weight and lm_head.weight.
struct Head : Module {
  struct Body : Module {
    Body(const LlamaDims& d, at::ScalarType dtype) {
      norm = register_module("norm", std::make_shared<RmsNorm>(d.dim, d.norm_eps, dtype));
    }
    std::shared_ptr<RmsNorm> norm;
  };

  Head(const LlamaDims& d, at::ScalarType dtype, const at::Tensor& embedding) {
    model = register_module("model", std::make_shared<Body>(d, dtype));
    lm_head = register_module("lm_head",
                              d.tied ? std::make_shared<Linear>(embedding)
                                     : std::make_shared<Linear>(d.dim, d.vocab, dtype));
  }

  at::Tensor logits(const at::Tensor& x) const {
    return ops::linears((*model->norm)(x), {lm_head->matrix()})[0];
  }

  std::shared_ptr<Body> model;
  std::shared_ptr<Linear> lm_head;
};

bool ends_with(const std::string& name, const std::string& end) {
  return name.size() >= end.size() && name.compare(name.size() - end.size(), end.size(), end) == 0;
}

// Returns how a parameter is initialised. The output weights of the residual branches start smaller
// in deeper models, so that their sum does not grow with the depth.
ParamInit initial(const std::string& name, int64_t layers) {
  if (ends_with(name, "norm.weight")) return {ParamInit::kConstant, 1.0};
  const bool residual = ends_with(name, "o_proj.weight") || ends_with(name, "down_proj.weight");
  return {ParamInit::kUniform,
          residual ? 0.02 / std::sqrt(2.0 * static_cast<double>(layers)) : 0.02};
}

// Returns how tensor parallelism may cut a parameter, after torchtitan's plan for Llama. Products
// cut along their outputs and along their inputs alternate, so that only the residual stream is
// communicated. A tied head has the hint of the embedding.
TpHint tp_hint(const std::string& name, const LlamaDims& d) {
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
  };
  for (const auto& [end, hint] : hints) {
    if (ends_with(name, end)) return hint;
  }
  throw Error(YOKE_INTERNAL, concat("no tensor-parallel hint for '", name, "'"));
}

// Opens the parameters in model.from. A tied head may be stored there under its own name, although
// it is not a parameter of the model; it must then equal the embedding.
ReadWeights stored_weights(const ModelConfig& model, const LlamaDims& d, const BlockList& list) {
  const std::string head = "lm_head.weight";
  Shapes shapes;
  for (const auto& of_block : list.params) {
    for (const auto& [name, leaf] : of_block) shapes[name] = leaf.sizes().vec();
  }
  if (!d.tied) return open_weights(model.from, shapes, {});
  shapes.erase(head);
  return open_weights(model.from, shapes, {{head, "model.embed_tokens.weight"}});
}

// Appends a layer, as one block or as two.
void add_layer(BlockList& list,
               const std::string& name,
               const std::shared_ptr<AttentionHalf>& first,
               const std::shared_ptr<FeedForwardHalf>& second,
               bool as_halves) {
  const auto attention = [first](const at::Tensor& x, const TorchInputs& in) {
    return first->forward(x, input(in, "positions"));
  };
  const auto feed_forward = [second](const at::Tensor& x, const TorchInputs&) {
    return second->forward(x);
  };
  if (as_halves) {
    add_block(list, {name + ".self_attn", first, attention}, name);
    add_block(list, {name + ".mlp", second, feed_forward}, name);
    return;
  }
  const auto both = [=](const at::Tensor& x, const TorchInputs& in) {
    return feed_forward(attention(x, in), in);
  };
  add_block(list, {name, std::make_shared<Layer>(*first, *second), both}, name);
}

ops::Product fp8_product(const PrecisionConfig& precision) {
  const std::string recipe = precision.fp8_recipe.value_or("tensorwise");
  if (recipe == "rowwise") return ops::Product::kRowwise;
  return recipe == "rowwise_gw_hp" ? ops::Product::kRowwiseGwHp : ops::Product::kTensorwise;
}

// Decides how each matrix of the blocks is multiplied.
void choose_products(BlockList& list, const PrecisionConfig& precision) {
  if (precision.product != "fp8") return;
  std::vector<NamedMatrix> matrices;
  std::vector<Linear*> layers;
  for (size_t block = 0; block < list.blocks.size(); ++block) {
    for (const auto& module : list.blocks[block].module->modules()) {
      auto* const linear = dynamic_cast<Linear*>(module.get());
      if (linear == nullptr) continue;
      const auto named =
          std::find_if(list.params[block].begin(), list.params[block].end(), [&](const auto& p) {
            return p.second.is_same(linear->weight);
          });
      const std::string name = named->first.substr(0, named->first.rfind(".weight"));
      matrices.push_back({name, linear->weight.size(0), linear->weight.size(1)});
      layers.push_back(linear);
    }
  }
  const std::vector<bool> chosen = choose_fp8(matrices, precision.fp8_skip);
  for (size_t i = 0; i < layers.size(); ++i) {
    if (chosen[i]) layers[i]->product = fp8_product(precision);
  }
  // Rounding takes memory that llama_costs() does not count.
  for (BlockCosts& costs : list.costs) costs.pass_bytes.clear();
}

BlockList make_blocks(const ModelConfig& model,
                      const PrecisionConfig& precision,
                      const FamilyArgs& args) {
  const LlamaDims d = llama_dims(model);
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
  auto rope = std::make_shared<RopeCache>(d.dim / d.heads, d.rope_theta);
  for (int64_t n = 0; n < d.layers; ++n) {
    add_layer(list,
              concat("model.layers.", n),
              std::make_shared<AttentionHalf>(d, dtype, rope),
              std::make_shared<FeedForwardHalf>(d, dtype),
              as_halves);
  }
  auto head = std::make_shared<Head>(d, dtype, embedding->weight);
  add_block(list,
            {"lm_head",
             head,
             [head](const at::Tensor& x, const TorchInputs& in) {
               return ops::cross_entropy_sum(head->logits(x), input(in, "targets"));
             }},
            "");
  choose_products(list, precision);
  list.logits = [head](const at::Tensor& x) { return head->logits(x); };
  list.init = [layers = d.layers](const std::string& name) { return initial(name, layers); };
  list.tp = [d](const std::string& name) { return tp_hint(name, d); };
  list.seq_len = args.seq_len;
  if (!model.from.empty()) list.stored = stored_weights(model, d, list);
  list.loss_weight = [](const TorchInputs& in) { return ops::count_targets(input(in, "targets")); };
  return list;
}

ModelInfo info(const ModelConfig& model, int64_t seq_len) {
  const LlamaDims d = llama_dims(model);
  const int64_t head_dim = d.dim / d.heads;
  const int64_t attention = 2 * d.dim * (d.heads + d.kv_heads) * head_dim;
  const int64_t layer = attention + 3 * d.dim * d.ffn_dim + 2 * d.dim;
  // Parameters that take part in products. The look-up of the input embedding is not a product.
  const int64_t computed = d.layers * layer + d.dim + d.vocab * d.dim;
  ModelInfo out;
  out.num_params = computed + (d.tied ? 0 : d.vocab * d.dim);
  out.vocab = d.vocab;
  out.flops_per_token =
      6.0 * static_cast<double>(computed) +
      12.0 * static_cast<double>(d.layers * d.heads * head_dim) * static_cast<double>(seq_len);
  out.hf_config_json = model.from.empty() ? hf_config_text(d, seq_len)
                                          : hf_config_text(read_hf_config(model.from), seq_len);
  return out;
}

}  // namespace

Family llama_family(const ModelConfig& config, const PrecisionConfig& precision) {
  return {[=](const FamilyArgs& args) { return make_blocks(config, precision, args); },
          [config](const FamilyArgs& args) { return info(config, args.seq_len); }};
}

std::map<std::string, Family> builtin_families(const ModelConfig& model,
                                               const PrecisionConfig& precision) {
  return {{"llama", llama_family(model, precision)}};
}

}  // namespace yoke
