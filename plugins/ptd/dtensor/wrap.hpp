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
      : local(std::move(l)), mesh(&m), placements(p), value(m.gathers().new_value()) {}

  at::Tensor local;
  Mesh* mesh;
  Placements placements;
  int64_t value;            // the same for views that have the same elements in the same order
  bool transposed = false;  // or, of matrices, in that of the transposed one
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

// No autograd. Strides say nothing about the local tensor: LibTorch's code decides by them what to
// do next, and all ranks must decide alike. Empty = compact.
at::Tensor wrap(at::Tensor local,
                Mesh& mesh,
                const Placements& placements,
                at::IntArrayRef sizes,
                at::IntArrayRef strides = {});

// Gives the tensor another local tensor that holds the same value.
void replace_local(DTensorMeta& meta, at::Tensor local, const Placements& placements);

enum class ViewKind : uint8_t {
  kSameOrder,  // all elements, in the same order
  kTranspose,  // of a matrix
  kOther,
};

// `t` came out of an operator that returns a view of `base`.
inline void mark_view(const at::Tensor& t, const at::Tensor& base, ViewKind kind) {
  if (!is_wrapped(base)) return;
  DTensorMeta& meta = meta_of(t);
  meta.view = true;
  meta.parameter = meta_of(base).parameter;
  const bool transposed = meta_of(base).transposed;
  if (kind == ViewKind::kTranspose || (kind == ViewKind::kSameOrder && !transposed)) {
    meta.value = meta_of(base).value;
    meta.transposed = transposed != (kind == ViewKind::kTranspose);
  }
  meta.alias_lost = meta_of(base).alias_lost || !meta.local.is_alias_of(meta_of(base).local);
}

}  // namespace yoke::ptd
