// The layout follows Megatron Core's param_and_grad_buffer.py, so that buckets, shards and the
// points at which a reduction can start are Megatron's own:
//
//   - Parameters lie in the reverse of the order in which Megatron registers them, which is about
//     the order in which a backward completes their gradients.
//   - A bucket ends after the parameter with which it has at least bucket_size elements.
//   - With the distributed optimizer a parameter begins at a multiple of 64 elements, and a bucket
//     ends at a multiple of the number of data ranks and of 128, so that all shards are equal and
//     aligned. A shard may end within a parameter.
//   - Pipeline stages of one rank have separate buffers, which lie one after another here.
//
// Megatron stores the projections to queries, keys and values as one parameter, and those of gate
// and up as well. Here their parts lie one after another in the place of that parameter. Its place
// and size are Megatron's; only the order of the elements within it differs, which changes no sum.
#include "plugins/megatron_compat/layout.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace yoke::megatron_compat {
namespace {

using compat::elements;
using compat::Names;
using compat::Slot;

// The parameters of a layer, in the order in which Megatron registers them.
constexpr Names::Name kOfLayer[] = {
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
constexpr Names::Name kOutside[] = {
    {"model.embed_tokens.weight", "embedding.word_embeddings.weight"},
    {"model.norm.weight", "decoder.final_layernorm.weight"},
    {"lm_head.weight", "output_layer.weight"},
};
constexpr Names kNames{kOfLayer, kOutside, "decoder.layers.", "."};

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

// Returns the stage of each parameter: the first one with a block that uses it.
std::vector<size_t> stages_of_params(const YokeModelSummary& model,
                                     const std::vector<uint64_t>& ends) {
  std::vector<size_t> stages(model.num_params, 0);
  for (uint64_t b = model.num_blocks; b-- > 0;) {
    const size_t stage = std::upper_bound(ends.begin(), ends.end(), b) - ends.begin();
    const YokeBlock& block = *model.blocks[b];
    for (uint64_t i = 0; i < block.num_params; ++i) stages[block.params[i]] = stage;
  }
  return stages;
}

}  // namespace

// On the last stage of a pipeline, a tied embedding is the weight of the head, which is registered
// last.
std::vector<Slot> megatron_slots(const YokeModelSummary& model) {
  std::vector<Slot> slots = compat::slots_of(model, kNames);
  if (slots.empty() || slots[0].name != kOutside[0].there) return slots;
  const YokeBlock& first = *model.blocks[0];
  const int64_t* const end = first.params + first.num_params;
  if (std::find(first.params, end, slots[0].params[0]) != end) return slots;
  slots[0].name = kOutside[2].there;
  std::rotate(slots.begin(), slots.begin() + 1, slots.end());
  return slots;
}

// Without overlap, nothing would be gained by cutting the buffer. On later pipeline ranks Megatron
// does not cut it either: they end their backward before the first one does.
BucketRules bucket_rules(const YokeModelSummary& model,
                         const Settings& settings,
                         int shards,
                         int copies,
                         bool first_stage) {
  int64_t all = 0;
  for (uint64_t p = 0; p < model.num_params; ++p) {
    if (model.params[p]->trainable != 0) all += elements(model, static_cast<int64_t>(p));
  }
  const int64_t otherwise = std::max<int64_t>(40'000'000, int64_t{1'000'000} * copies);
  int64_t size = settings.bucket_size > 0 ? settings.bucket_size : otherwise;
  if (settings.num_buckets > 0) size = std::max<int64_t>(1, all / settings.num_buckets);
  return {settings.overlap_grad_reduce && first_stage ? size : 0,
          settings.distributed_optimizer,
          settings.pad_buckets,
          shards};
}

Layout Layout::of(const YokeModelSummary& model, const BucketRules& rules) {
  std::vector<Slot> slots = megatron_slots(model);
  const std::vector<size_t> stages = stages_of_params(model, rules.stage_ends);
  const auto stage_of = [&](const Slot& slot) { return stages[slot.params.front()]; };
  std::reverse(slots.begin(), slots.end());
  std::stable_sort(slots.begin(), slots.end(), [&](const Slot& a, const Slot& b) {
    return stage_of(a) < stage_of(b);
  });
  std::vector<Bucket> buckets;
  int64_t size = 0;
  const int64_t begins = rules.distributed ? kParamMultiple : 1;
  const int64_t ends = rules.distributed ? bucket_multiple(rules) : 1;
  bool is_open = false;
  const auto close = [&] {
    Bucket& bucket = buckets.back();
    bucket.used = size - bucket.begin;
    size = padded(size, ends);
    bucket.size = size - bucket.begin;
    is_open = false;
  };
  const Slot* before = nullptr;
  for (Slot& slot : slots) {
    const bool alone = rules.distributed && rules.is_shared(slot.params.front());
    if (is_open && (alone || stage_of(*before) != stage_of(slot))) close();
    before = &slot;
    size = padded(size, begins);
    if (!is_open) buckets.push_back({size, 0, 0});
    is_open = true;
    slot.begin = size;
    for (const int64_t p : slot.params) size += elements(model, p);
    slot.end = size;
    slot.bucket = static_cast<int64_t>(buckets.size()) - 1;
    const bool full = rules.bucket_size > 0 && stage_of(slot) == 0 &&
                      size - buckets.back().begin >= rules.bucket_size;
    if (alone || full) close();
  }
  if (is_open) close();
  return {FlatLayout(model, std::move(slots), size), std::move(buckets), rules.shards};
}

Bucket Layout::shard(int64_t bucket, int rank) const {
  const Bucket& whole = buckets_[bucket];
  const int64_t size = whole.size / shards_;
  return {whole.begin + rank * size, size, size};
}

std::vector<compat::Range> Layout::shards(int rank) const {
  std::vector<compat::Range> ranges;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    const Bucket own = shard(static_cast<int64_t>(b), rank);
    ranges.push_back({own.begin, own.size});
  }
  return ranges;
}

}  // namespace yoke::megatron_compat
