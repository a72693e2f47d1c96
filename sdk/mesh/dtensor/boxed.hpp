// The boxed path of operators on DTensors. A call takes it if no decision is cached for it yet, or
// if an operand must be redistributed. Operators without an unboxed kernel always take it.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "sdk/mesh/dtensor/wrap.hpp"

namespace yoke::mesh {

void run_boxed(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// ---- Keys of the cache ----
// The boxed and the unboxed path must add the same words for the same arguments. Sizes are preceded
// by the number of dims, so that no two argument lists give the same sequence of words.

inline void add_to_key(OpKey& key, const at::Tensor& t) {
  if (!t.defined()) return key.add(-1);
  const bool wrapped = is_wrapped(t);
  key.add(t.dim() * 512 + static_cast<int64_t>(t.scalar_type()) * 4 + (wrapped ? 2 : 0) +
          (wrapped && meta_of(t).parameter ? 1 : 0));
  for (const int64_t n : t.sizes()) key.add(n);
  if (!wrapped) return;
  for (int a = 0; a < meta_of(t).mesh->ndim(); ++a) key.add(meta_of(t).placements[a].bits());
}
inline void add_to_key(OpKey& key, int64_t value) {
  key.add(value);
}
inline void add_to_key(OpKey& key, at::IntArrayRef values) {
  key.add(static_cast<int64_t>(values.size()));
  for (const int64_t v : values) key.add(v);
}
inline constexpr int64_t kNone = INT64_MIN;  // the word for an optional argument without a value

}  // namespace yoke::mesh
