// The summary of a Llama as the host makes it, without LibTorch: names, shapes and blocks.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "yoke/error.hpp"

namespace yoke::testing {

struct Dims {
  int64_t dim = 64, layers = 2, heads = 8, kv_heads = 4, ffn_dim = 256, vocab = 1024;
  bool tied = false;
  int64_t seq_len = 64;
  bool decay_matrices = false;  // whether weight decay leaves norms out
  // The part of a rank: numbers of its layers (empty = all), whether it has the embedding and the
  // head, and the ranks of tp.
  std::vector<int64_t> own_layers = {};
  bool embedding = true, head = true;
  int64_t tp = 1;
};

class LlamaSummary {
 public:
  explicit LlamaSummary(const Dims& d) {
    const int64_t q = d.dim / d.tp, kv = d.dim / d.heads * d.kv_heads / d.tp;
    const int64_t ffn = d.ffn_dim / d.tp, vocab = d.vocab / d.tp;
    if (d.embedding) begin_block("model.embed_tokens");
    if (d.embedding || d.tied) add("model.embed_tokens.weight", {vocab, d.dim}, d.vocab, d);
    std::vector<int64_t> layers = d.own_layers;
    for (int64_t n = 0; d.own_layers.empty() && n < d.layers; ++n) layers.push_back(n);
    for (const int64_t n : layers) {
      const std::string layer = "model.layers." + std::to_string(n);
      begin_block(layer);
      add(layer + ".input_layernorm.weight", {d.dim}, 0, d);
      add(layer + ".self_attn.q_proj.weight", {q, d.dim}, d.heads, d);
      add(layer + ".self_attn.k_proj.weight", {kv, d.dim}, d.kv_heads, d);
      add(layer + ".self_attn.v_proj.weight", {kv, d.dim}, d.kv_heads, d);
      add(layer + ".self_attn.o_proj.weight", {d.dim, q}, d.heads, d);
      add(layer + ".post_attention_layernorm.weight", {d.dim}, 0, d);
      add(layer + ".mlp.gate_proj.weight", {ffn, d.dim}, d.ffn_dim, d);
      add(layer + ".mlp.up_proj.weight", {ffn, d.dim}, d.ffn_dim, d);
      add(layer + ".mlp.down_proj.weight", {d.dim, ffn}, d.ffn_dim, d);
    }
    if (d.head) add_head(d, vocab);
    finish(d);
  }
  LlamaSummary(const LlamaSummary&) = delete;
  const YokeModelSummary& get() const { return summary_; }

 private:
  void add_head(const Dims& d, int64_t vocab) {
    begin_block("lm_head");
    add("model.norm.weight", {d.dim}, 0, d);
    if (d.tied) {
      of_block_.back().push_back(0);
    } else {
      add("lm_head.weight", {vocab, d.dim}, d.vocab, d);
    }
  }
  void begin_block(const std::string& name) {
    names_.push_back(name);
    YokeBlock block{};
    block.header = YOKE_HEADER(YokeBlock, YOKE_ID_BLOCK);
    block.name = view(names_.back());
    block.activation_bytes = 100;
    block.carry_bytes = 10;
    blocks_.push_back(block);
    of_block_.emplace_back();
  }
  void add(const std::string& name, std::vector<int64_t> shape, int64_t parts, const Dims& d) {
    names_.push_back(name);
    shapes_.push_back(std::move(shape));
    YokeParameter param{};
    param.header = YOKE_HEADER(YokeParameter, YOKE_ID_PARAMETER);
    param.name = view(names_.back());
    param.shape = shapes_.back().data();
    param.ndim = static_cast<int32_t>(shapes_.back().size());
    param.dtype = YOKE_F32;
    param.trainable = 1;
    param.decay = param.ndim > 1 || !d.decay_matrices ? 1 : 0;
    // Inputs of the last product of attention and of the feed-forward layer are cut, else outputs.
    const bool is_input = name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight");
    param.tp_cut = parts == 0 ? int32_t{YOKE_TP_WHOLE} : is_input ? 2 : 1;
    param.tp_parts = parts;
    // A tied embedding without its block comes first, and the head lists it.
    if (!of_block_.empty()) of_block_.back().push_back(static_cast<int64_t>(params_.size()));
    params_.push_back(param);
  }
  void finish(const Dims& d) {
    for (const YokeParameter& p : params_) param_pointers_.push_back(&p);
    for (size_t b = 0; b < blocks_.size(); ++b) {
      blocks_[b].params = of_block_[b].data();
      blocks_[b].num_params = of_block_[b].size();
      block_pointers_.push_back(&blocks_[b]);
    }
    summary_.header = YOKE_HEADER(YokeModelSummary, YOKE_ID_MODEL_SUMMARY);
    summary_.params = param_pointers_.data();
    summary_.num_params = param_pointers_.size();
    summary_.blocks = block_pointers_.data();
    summary_.num_blocks = block_pointers_.size();
    summary_.seq_len = d.seq_len;
  }

  std::deque<std::string> names_;
  std::deque<std::vector<int64_t>> shapes_, of_block_;
  std::deque<YokeParameter> params_;
  std::deque<YokeBlock> blocks_;
  std::vector<const YokeParameter*> param_pointers_;
  std::vector<const YokeBlock*> block_pointers_;
  YokeModelSummary summary_{};
};

}  // namespace yoke::testing
