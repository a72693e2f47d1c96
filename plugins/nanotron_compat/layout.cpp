// nanotron stores the projections to queries, keys and values as one parameter, with these parts in
// this order, and those of gate and up as well. Slices are cut from the parameters of nanotron, so
// a slice may begin among the queries and end among the keys.
//
// Buckets are those of PyTorch's DistributedDataParallel, which nanotron uses: parameters in the
// reverse of their order fill a bucket until it has bucket_elements or more.
#include "plugins/nanotron_compat/layout.hpp"

#include <algorithm>

#include "yoke/text.hpp"

namespace yoke::nanotron_compat {
namespace {

using compat::Names;
using compat::Range;
using compat::Slot;

constexpr Names::Name kOfLayer[] = {
    {"input_layernorm.weight", "input_layernorm.weight"},
    {"self_attn.q_proj.weight", "attn.qkv_proj.weight"},
    {"self_attn.k_proj.weight", "attn.qkv_proj.weight"},
    {"self_attn.v_proj.weight", "attn.qkv_proj.weight"},
    {"self_attn.o_proj.weight", "attn.o_proj.weight"},
    {"post_attention_layernorm.weight", "post_attention_layernorm.weight"},
    {"mlp.gate_proj.weight", "mlp.gate_up_proj.weight"},
    {"mlp.up_proj.weight", "mlp.gate_up_proj.weight"},
    {"mlp.down_proj.weight", "mlp.down_proj.weight"},
};
constexpr Names::Name kOutside[] = {
    {"model.embed_tokens.weight",
     "model.token_position_embeddings.pp_block.token_embedding.weight"},
    {"model.norm.weight", "model.final_layer_norm.pp_block.weight"},
    {"lm_head.weight", "model.lm_head.pp_block.weight"},
};
constexpr Names kNames{kOfLayer, kOutside, "model.decoder.", ".pp_block."};

}  // namespace

std::vector<std::string> parameter_names(std::optional<int64_t> layers) {
  std::vector<std::string> names{std::string(kOutside[0].there)};
  for (int64_t n = 0; n < layers.value_or(1); ++n) {
    for (const Names::Name& name : kOfLayer) {
      std::string text = concat(kNames.before_layer, n, kNames.behind_layer, name.there);
      if (names.back() != text) names.push_back(std::move(text));
    }
  }
  for (const size_t i : {1, 2}) names.emplace_back(kOutside[i].there);
  return names;
}

Range slice(int64_t n, int rank, int ranks) {
  const int64_t size = (n + ranks - 1) / ranks;
  const int64_t full = ranks - (size * ranks - n);  // number of ranks with a slice of this size
  const int64_t begin = rank * size - std::max<int64_t>(0, rank - full);
  return {begin, rank < full ? size : size - 1};
}

Layout Layout::of(const YokeModelSummary& model, int64_t bucket_elements) {
  std::vector<Slot> slots = compat::slots_of(model, kNames);
  int64_t size = 0;
  for (Slot& slot : slots) {
    slot.begin = size;
    for (const int64_t p : slot.params) size += compat::elements(model, p);
    slot.end = size;
  }
  std::vector<Range> buckets;
  for (size_t i = slots.size(); i-- > 0;) {
    Slot& slot = slots[i];
    if (buckets.empty() || buckets.back().count >= bucket_elements)
      buckets.push_back({slot.end, 0});
    Range& bucket = buckets.back();
    bucket.count += slot.end - slot.begin;
    bucket.begin = slot.begin;
    slot.bucket = static_cast<int64_t>(buckets.size()) - 1;
  }
  return {FlatLayout(model, std::move(slots), size), std::move(buckets)};
}

std::vector<Range> Layout::slices(int rank, int ranks) const {
  if (ranks == 1) return {{0, size()}};
  std::vector<Range> slices;
  for (const Slot& slot : slots()) {
    const Range own = slice(slot.end - slot.begin, rank, ranks);
    if (own.count > 0) slices.push_back({slot.begin + own.begin, own.count});
  }
  return slices;
}

}  // namespace yoke::nanotron_compat
