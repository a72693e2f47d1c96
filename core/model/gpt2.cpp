// The matrices of GPT-2 are [in, out] in its files (Conv1D), and one matrix gives queries, keys and
// values. Tensor parallelism must cut each of the three by heads, which no range of the 3 * dim
// columns does. So the parameter is [dim, 3, dim]: the same elements in the same order, with a dim
// that may be cut. Files keep the shape [dim, 3 * dim] (BlockList::stored_shapes).
//
// Splitting the matrix into three parameters was rejected: a checkpoint would then not be a folder
// that transformers opens.
#include "core/model/gpt2.hpp"

#include "core/model/adapters.hpp"
#include "core/model/gpt2_costs.hpp"
#include "core/model/model_dims.hpp"
#include "core/model/modules.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using torch::nn::Module;

constexpr const char* kEmbedding = "transformer.wte.weight";

struct LayerNorm : Weight {
  LayerNorm(int64_t dim, double norm_eps, at::ScalarType dtype)
      : Weight({dim}, dtype), eps(norm_eps) {
    bias = register_parameter("bias", unallocated({dim}, dtype));
  }
  at::Tensor operator()(const at::Tensor& x) const { return ops::layer_norm(x, weight, bias, eps); }
  double eps;
  at::Tensor bias;
};

struct Embeddings : Module {
  Embeddings(const ModelDims& d, at::ScalarType dtype) {
    wte = register_module("wte", std::make_shared<Embedding>(d.vocab, d.dim, dtype));
    wpe = register_module("wpe", std::make_shared<Embedding>(d.positions, d.dim, dtype));
  }
  at::Tensor forward(const TorchInputs& in) const {
    return (*wte)(input(in, "tokens")) + (*wpe)(input(in, "positions"));
  }
  std::shared_ptr<Embedding> wte, wpe;
};

struct Attention : Module {
  Attention(const ModelDims& d, at::ScalarType dtype) : head_dim(d.head_size()) {
    c_attn = register_module(
        "c_attn", std::make_shared<Conv1d>(d.dim, std::vector<int64_t>{3, d.dim}, dtype));
    c_proj = register_module("c_proj",
                             std::make_shared<Conv1d>(d.dim, std::vector<int64_t>{d.dim}, dtype));
  }
  // Returns residual + attention(x).
  at::Tensor forward(const at::Tensor& residual, const at::Tensor& x, const TorchInputs& in) const {
    const at::Tensor all = ops::linears(x, {c_attn->matrix()})[0];
    // The number of heads is inferred (-1), because with tensor parallelism a rank holds only some.
    const auto qkv = all.view({all.size(0), all.size(1), 3, -1, head_dim}).unbind(2);
    return ops::linear_add(residual,
                           ops::causal_attention(qkv[0], qkv[1], qkv[2], 0, documents_of(in)),
                           c_proj->matrix());
  }
  int64_t head_dim;
  std::shared_ptr<Conv1d> c_attn, c_proj;
};

struct FeedForward : Module {
  FeedForward(const ModelDims& d, at::ScalarType dtype)
      : by_tanh(d.activation == Activation::kGeluTanh) {
    c_fc = register_module("c_fc",
                           std::make_shared<Conv1d>(d.dim, std::vector<int64_t>{d.ffn_dim}, dtype));
    c_proj = register_module(
        "c_proj", std::make_shared<Conv1d>(d.ffn_dim, std::vector<int64_t>{d.dim}, dtype));
  }
  // Returns residual + feed_forward(x).
  at::Tensor forward(const at::Tensor& residual, const at::Tensor& x, const TorchInputs&) const {
    const at::Tensor hidden = ops::linears(x, {c_fc->matrix()})[0];
    return ops::linear_add(residual, ops::gelu(hidden, by_tanh), c_proj->matrix());
  }
  bool by_tanh;
  std::shared_ptr<Conv1d> c_fc, c_proj;
};

// A half of a layer: a norm, and attention or the feed-forward layer.
template <class Part>
struct Half : Module {
  Half(const char* norm_name, const char* part_name, const ModelDims& d, at::ScalarType dtype) {
    norm = register_module(norm_name, std::make_shared<LayerNorm>(d.dim, d.norm_eps, dtype));
    part = register_module(part_name, std::make_shared<Part>(d, dtype));
  }
  std::shared_ptr<LayerNorm> norm;
  std::shared_ptr<Part> part;
};

template <class Part>
LayerHalf make_half(const char* norm, const char* part, const ModelDims& d, at::ScalarType dtype) {
  const auto half = std::make_shared<Half<Part>>(norm, part, d, dtype);
  return {half, [half](const at::Tensor& x, const TorchInputs& in) {
            return half->part->forward(x, (*half->norm)(x), in);
          }};
}

// Returns how a parameter is initialised.
ParamInit initial(const std::string& name, int64_t layers) {
  if (name.ends_with(".bias")) return {ParamInit::kConstant, 0.0};
  if (name.find("ln_") != std::string::npos) return {ParamInit::kConstant, 1.0};
  const bool residual = name.ends_with("c_proj.weight");
  return matrix_init(residual, layers);
}

// Returns how tensor parallelism may cut a parameter. The vocabulary of the published models has an
// odd size, which no usual degree divides, so such a table stays whole.
TpHint tp_hint(const std::string& name, const ModelDims& d) {
  const TpHint vocab = d.vocab % 2 == 0 ? TpHint::along(0, d.vocab) : TpHint::whole();
  const std::pair<const char*, TpHint> hints[] = {
      {"wte.weight", vocab},
      {"wpe.weight", TpHint::along(0, d.positions)},
      {"attn.c_attn.weight", TpHint::along(2, d.heads)},
      {"attn.c_attn.bias", TpHint::along(1, d.heads)},
      {"attn.c_proj.weight", TpHint::along(0, d.heads)},
      {"mlp.c_fc.weight", TpHint::along(1, d.ffn_dim)},
      {"mlp.c_fc.bias", TpHint::along(0, d.ffn_dim)},
      {"mlp.c_proj.weight", TpHint::along(0, d.ffn_dim)},
      {"c_proj.bias", TpHint::whole()},
      {"lm_head.weight", vocab},
  };
  for (const auto& [end, hint] : hints) {
    if (name.ends_with(end)) return hint;
  }
  if (name.find("ln_") != std::string::npos) return TpHint::whole();
  throw Error(YOKE_INTERNAL, concat("no tensor-parallel hint for '", name, "'"));
}

void refuse_fp8(const PrecisionConfig& precision) {
  if (precision.product != "fp8") return;
  throw Error(YOKE_INVALID_ARGUMENT,
              "precision.product = \"fp8\" is not implemented for the matrices of GPT-2; allowed: "
              "\"param\", or a family with matrices [out, in] (llama, mistral, qwen2, qwen3)");
}

BlockList make_blocks(const ModelConfig& model,
                      const PrecisionConfig& precision,
                      const FamilyArgs& args) {
  refuse_fp8(precision);
  const ModelDims d = model_dims(model);
  const at::ScalarType dtype = scalar_type(args.param_dtype);
  const bool as_halves = model.blocks == "half";
  BlockList list;
  list.costs = gpt2_costs(d, args, as_halves);
  if (!as_halves) list.more_blocks = "model.blocks = \"half\"";
  auto embeddings = std::make_shared<Embeddings>(d, dtype);
  add_block(
      list,
      {"transformer.embeddings",
       embeddings,
       [embeddings](const at::Tensor&, const TorchInputs& in) { return embeddings->forward(in); }},
      "transformer");
  for (int64_t n = 0; n < d.layers; ++n) {
    const std::string layer = concat("transformer.h.", n);
    add_layer(list,
              layer,
              make_half<Attention>("ln_1", "attn", d, dtype),
              make_half<FeedForward>("ln_2", "mlp", d, dtype),
              {".attn", ".mlp"},
              as_halves);
    list.stored_shapes[layer + ".attn.c_attn.weight"] = {d.dim, 3 * d.dim};
    list.stored_shapes[layer + ".attn.c_attn.bias"] = {3 * d.dim};
  }
  auto head = std::make_shared<Head<LayerNorm>>(
      std::array{"transformer", "ln_f"}, d, dtype, embeddings->wte->weight);
  add_head(list, head, args.seq_len);
  list.init = [layers = d.layers](const std::string& name) { return initial(name, layers); };
  list.tp = [d](const std::string& name) { return tp_hint(name, d); };
  add_adapters(list, model.lora);
  // The published files have the names of transformers' GPT2Model, which has no head.
  if (!model.from.empty()) open_stored(list, model.from, kEmbedding, d.tied, "transformer.");
  open_adapters(list, model);
  return list;
}

}  // namespace

Family gpt2_family(const ModelConfig& config, const PrecisionConfig& precision) {
  return {[=](const FamilyArgs& args) { return make_blocks(config, precision, args); },
          [config](const FamilyArgs& args) { return model_info(config, args.seq_len); }};
}

}  // namespace yoke
