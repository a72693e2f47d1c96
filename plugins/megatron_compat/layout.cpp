// The layout follows Megatron Core's param_and_grad_buffer.py, so that buckets, shards and the
// points at which a reduction can start are Megatron's own:
//
//   - Parameters lie in the reverse of the order in which Megatron registers them, which is about
//     the order in which a backward completes their gradients.
//   - A bucket ends after the parameter with which it has at least bucket_size elements.
//   - With the distributed optimizer a parameter begins at a multiple of 64 elements, and a bucket
//     ends at a multiple of the number of data ranks and of 128, so that all shards are equal and
//     aligned. A shard may end within a parameter.
//
// Megatron stores the projections to queries, keys and values as one parameter, and those of gate
// and up as well. Here their parts lie one after another in the place of that parameter. Its place
// and size are Megatron's; only the order of the elements within it differs, which changes no sum.
#include "plugins/megatron_compat/layout.hpp"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "yoke/error.hpp"
#include "yoke/tensor.hpp"

namespace yoke::megatron_compat {
namespace {

struct Name {
  std::string_view here, megatron;
};

// The parameters of a layer, in the order in which Megatron registers them.
constexpr Name kOfLayer[] = {
    {"input_layernorm.weight", "input_layernorm.weight"},
    {"self_attn.o_proj.weight", "self_attention.linear_proj.weight"},
    {"self_attn.q_proj.weight", "self_attention.linear_qkv.weight"},
    {"self_attn.k_proj.weight", "self_attention.linear_qkv.weight"},
    {"self_attn.v_proj.weight", "self_attention.linear_qkv.weight"},
    {"post_attention_layernorm.weight", "pre_mlp_layernorm.weight"},
    {"mlp.gate_proj.weight", "mlp.linear_fc1.weight"},
    {"mlp.up_proj.weight", "mlp.linear_fc1.weight"},
    {"mlp.down_proj.weight", "mlp.linear_fc2.weight"},
};
constexpr Name kOutside[] = {
    {"model.embed_tokens.weight", "embedding.word_embeddings.weight"},
    {"model.norm.weight", "decoder.final_layernorm.weight"},
    {"lm_head.weight", "output_layer.weight"},
};
constexpr std::string_view kLayers = "model.layers.";

// A trainable parameter with its name in Megatron and its place among those of its layer.
struct Named {
  std::string name;
  std::string_view layer;  // number of the layer; "" = in no layer
  size_t place = 0;        // within the layer
  int64_t param = 0;
};

Named named(const YokeModelSummary& model, int64_t param) {
  const std::string_view name = view(model.params[param]->name);
  for (const Name& n : kOutside) {
    if (n.here == name) return {std::string(n.megatron), "", 0, param};
  }
  if (name.starts_with(kLayers)) {
    const std::string_view rest = name.substr(kLayers.size());
    const size_t dot = std::min(rest.find('.'), rest.size() - 1);
    const std::string_view layer = rest.substr(0, dot);
    for (size_t i = 0; i < std::size(kOfLayer); ++i) {
      if (kOfLayer[i].here != rest.substr(dot + 1)) continue;
      return {"decoder.layers." + std::string(layer) + "." + std::string(kOfLayer[i].megatron),
              layer,
              i,
              param};
    }
  }
  return {std::string(name), "", 0, param};
}

int64_t elements(const YokeModelSummary& model, int64_t param) {
  return numel(model.params[param]->shape, model.params[param]->ndim);
}

int64_t padded(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// Megatron pads to 128 elements so that shards begin at a multiple of 256 bytes in 16-bit dtypes,
// and with pad_for_busbw to a large power of two, for which NCCL is faster.
int64_t bucket_multiple(const BucketRules& rules) {
  const int64_t multiple = std::lcm(int64_t{rules.shards}, int64_t{128});
  return rules.pad_for_busbw ? std::lcm(multiple, int64_t{1} << 16) : multiple;
}

constexpr int64_t kParamMultiple = 64;

}  // namespace

std::vector<Slot> megatron_slots(const YokeModelSummary& model) {
  std::vector<Named> all;
  for (uint64_t p = 0; p < model.num_params; ++p) {
    if (model.params[p]->trainable != 0) all.push_back(named(model, static_cast<int64_t>(p)));
  }
  // Sorts the parameters of each layer.
  for (auto begin = all.begin(); begin != all.end();) {
    const auto end = std::find_if(
        begin, all.end(), [&](const Named& n) { return n.layer != begin->layer || n.layer == ""; });
    std::sort(begin, end, [](const Named& a, const Named& b) { return a.place < b.place; });
    begin = end == begin ? begin + 1 : end;
  }
  std::vector<Slot> slots;
  for (const Named& n : all) {
    if (slots.empty() || slots.back().name != n.name) slots.push_back({n.name, {}, 0, 0, 0});
    slots.back().params.push_back(n.param);
  }
  return slots;
}

// Without overlap, nothing would be gained by cutting the buffer.
BucketRules bucket_rules(const YokeModelSummary& model,
                         const Settings& settings,
                         int shards,
                         int data_ranks) {
  int64_t all = 0;
  for (uint64_t p = 0; p < model.num_params; ++p) {
    if (model.params[p]->trainable != 0) all += elements(model, static_cast<int64_t>(p));
  }
  const int64_t otherwise = std::max<int64_t>(40'000'000, int64_t{1'000'000} * data_ranks);
  int64_t size = settings.bucket_size > 0 ? settings.bucket_size : otherwise;
  if (settings.num_buckets > 0) size = std::max<int64_t>(1, all / settings.num_buckets);
  return {settings.overlap_grad_reduce ? size : 0,
          settings.distributed_optimizer,
          settings.pad_buckets,
          shards};
}

Layout::Layout(const YokeModelSummary& model, const BucketRules& rules)
    : model_(model),
      slots_(megatron_slots(model)),
      offsets_(model.num_params, -1),
      bucket_of_(model.num_params, -1),
      shards_(rules.shards) {
  std::reverse(slots_.begin(), slots_.end());
  place(rules);
  for (const Slot& slot : slots_) {
    int64_t offset = slot.begin;
    for (const int64_t p : slot.params) {
      offsets_[p] = offset;
      bucket_of_[p] = slot.bucket;
      offset += elements(model, p);
    }
  }
}

void Layout::place(const BucketRules& rules) {
  const int64_t begins = rules.distributed ? kParamMultiple : 1;
  const int64_t ends = rules.distributed ? bucket_multiple(rules) : 1;
  bool is_open = false;
  const auto close = [&] {
    Bucket& bucket = buckets_.back();
    bucket.used = size_ - bucket.begin;
    size_ = padded(size_, ends);
    bucket.size = size_ - bucket.begin;
    is_open = false;
  };
  for (Slot& slot : slots_) {
    size_ = padded(size_, begins);
    if (!is_open) buckets_.push_back({size_, 0, 0});
    is_open = true;
    slot.begin = size_;
    for (const int64_t p : slot.params) size_ += elements(model_, p);
    slot.end = size_;
    slot.bucket = static_cast<int64_t>(buckets_.size()) - 1;
    if (rules.bucket_size > 0 && size_ - buckets_.back().begin >= rules.bucket_size) close();
  }
  if (is_open) close();
}

Bucket Layout::shard(int64_t bucket, int rank) const {
  const Bucket& whole = buckets_[bucket];
  const int64_t size = whole.size / shards_;
  return {whole.begin + rank * size, size, size};
}

std::vector<Piece> Layout::pieces(int64_t begin, int64_t count) const {
  std::vector<Piece> pieces;
  for (const Slot& slot : slots_) {
    for (const int64_t p : slot.params) {
      const int64_t first = std::max(begin, offsets_[p]);
      const int64_t last = std::min(begin + count, offsets_[p] + elements(model_, p));
      if (first < last) pieces.push_back({p, first - offsets_[p], last - first, first});
    }
  }
  return pieces;
}

}  // namespace yoke::megatron_compat
