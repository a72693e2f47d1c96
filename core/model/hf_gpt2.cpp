// GPT-2 has learned positions, LayerNorm, biases everywhere and GELU. Its published files ask for
// dropout in training. Yoke trains without dropout, as do most programs that fine-tune such a
// model, and says so in the log.
#include "core/model/hf_family.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

Activation activation(HfReader& reader) {
  const std::string name = reader.text("activation_function", "gelu_new");
  if (name == "gelu_new" || name == "gelu_pytorch_tanh") return Activation::kGeluTanh;
  if (name != "gelu") {
    reader.refuse(
        "activation_function", name, "; allowed: \"gelu_new\", \"gelu_pytorch_tanh\", \"gelu\"");
  }
  return Activation::kGelu;
}

void read(HfReader& reader, HfConfig& config) {
  for (const FixedKey& rule :
       {FixedKey{"scale_attn_weights", "true", "unscaled attention is not supported"},
        FixedKey{"scale_attn_by_inverse_layer_idx",
                 "false",
                 "a scale that differs between layers is not supported"},
        FixedKey{"add_cross_attention", "false", "cross-attention is not supported"},
        FixedKey{"quantization_config", "null", "quantized weights are not supported"}}) {
    reader.fixed(rule);
  }
  ModelDims& d = config.dims;
  d.dim = reader.count("n_embd", 768);
  d.layers = reader.count("n_layer", 12);
  d.heads = d.kv_heads = reader.count("n_head", 12);
  d.ffn_dim = reader.count("n_inner", 4 * d.dim);
  d.vocab = reader.count("vocab_size", 50257);
  d.positions = config.max_positions = reader.count("n_positions", 1024);
  d.tied = reader.boolean("tie_word_embeddings", true);
  d.norm_eps = reader.number("layer_norm_epsilon", 1e-5);
  d.activation = activation(reader);
  d.qkv_bias = d.o_bias = d.mlp_bias = true;
  std::string dropout;
  for (const char* key : {"embd_pdrop", "resid_pdrop", "attn_pdrop"}) {
    const double rate = reader.number(key, 0.1);
    if (rate == 0) continue;
    dropout += concat(dropout.empty() ? "" : ", ", key, " = ", rate);
    if (reader.find(key) == nullptr) dropout += " (the default of transformers)";
  }
  if (!dropout.empty())
    config.notes.push_back(dropout + " have no effect: Yoke trains without dropout");
}

}  // namespace

const HfFamily kHfGpt2{"gpt2", "GPT2LMHeadModel", "GPT2Model", read};

}  // namespace yoke
