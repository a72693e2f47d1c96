// The forward stores the KeptWeights in the node of the graph, because on a device the backward
// runs on a thread of LibTorch, where the thread-local pointer is not set.
//
// A scope that a backend opens was preferred to a cache that notices changed weights by itself:
// optimizers write to parameters through raw pointers, which no version counter sees.
#include "core/kernels/fp8_weights.hpp"

namespace yoke::ops::fp8 {
namespace {

thread_local c10::intrusive_ptr<KeptWeights> kept;

}  // namespace

bool KeptWeights::takes(const at::Tensor& weight) {
  return weight.has_storage() && weight.is_leaf() && weight.numel() > 0;
}

const RoundedWeight& KeptWeights::get(const at::Tensor& weight, const Recipe& recipe) {
  const auto [entry, is_new] = entries_.try_emplace(weight.unsafeGetTensorImpl());
  if (is_new) entry->second = {weight, round_weight(weight, recipe.weight, recipe.weight_for_dx)};
  return entry->second.rounded;
}

void keep_roundings(bool keep) {
  kept = keep ? c10::make_intrusive<KeptWeights>() : nullptr;
}

const c10::intrusive_ptr<KeptWeights>& kept_weights() {
  return kept;
}

}  // namespace yoke::ops::fp8
