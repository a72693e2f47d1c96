// The inside of a DTensor: a TensorImpl without storage on a spare dispatch key, whose BackendMeta
// holds the rest. No subclass, so that an existing leaf can be converted in place.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include "plugins/ptd/dtensor/mesh.hpp"

namespace yoke::ptd {

// LibTorch 2.11 registers no operator on this key and no tensor of its own has it.
inline constexpr c10::DispatchKey kDTensorKey = c10::DispatchKey::Fake;

// Shared by all aliases of a wrapper (detached ones, those that autograd saved).
struct DTensorMeta final : c10::BackendMeta {
  DTensorMeta(at::Tensor l, Mesh& m, const Placements& p)
      : local(std::move(l)), mesh(&m), placements(p) {}

  at::Tensor local;
  Mesh* mesh;
  Placements placements;
  bool parameter = false;   // or a view of one: never moved
  bool view = false;        // of another DTensor, whose memory the local tensor shares
  bool alias_lost = false;  // it was a view; its local tensor has memory of its own now
};

inline bool is_wrapped(const at::Tensor& t) {
  return t.defined() && t.key_set().has(kDTensorKey);
}
inline DTensorMeta& meta_of(const at::Tensor& wrapped) {
  return *static_cast<DTensorMeta*>(wrapped.unsafeGetTensorImpl()->get_backend_meta());
}

// No autograd.
at::Tensor wrap(at::Tensor local, Mesh& mesh, const Placements& placements, at::IntArrayRef sizes);

// Gives the tensor another local tensor that holds the same value.
void replace_local(DTensorMeta& meta, at::Tensor local, const Placements& placements);

// `t` came out of an operator that returns a view of `base`.
inline void mark_view(const at::Tensor& t, const at::Tensor& base) {
  if (!is_wrapped(base)) return;
  DTensorMeta& meta = meta_of(t);
  meta.view = true;
  meta.parameter = meta_of(base).parameter;
  meta.alias_lost = meta_of(base).alias_lost || !meta.local.is_alias_of(meta_of(base).local);
}

}  // namespace yoke::ptd
