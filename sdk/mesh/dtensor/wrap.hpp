// A DTensor is a TensorImpl without storage on a spare dispatch key, whose BackendMeta holds the
// local tensor and its placements. There is no subclass of TensorImpl, so an existing leaf can be
// converted in place.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include "sdk/mesh/dtensor/mesh.hpp"

namespace yoke::mesh {

// LibTorch 2.11 registers no operator on this key, and none of its own tensors has it.
inline constexpr c10::DispatchKey kDTensorKey = c10::DispatchKey::Fake;

// The data of a DTensor. All aliases of a DTensor, such as detached tensors and those that autograd
// saved, share one DTensorMeta.
struct DTensorMeta final : c10::BackendMeta {
  DTensorMeta(at::Tensor l, Mesh& m, const Placements& p)
      : local(std::move(l)), mesh(&m), placements(p), value(m.gathers().new_value()) {}

  at::Tensor local;  // local_of() returns it with its value, even if that is pending
  Mesh* mesh;
  Placements placements;
  int64_t value;            // number for GatherMemo, shared by views with the same order
  bool transposed = false;  // the elements are in the order of the transposed matrix
  bool parameter = false;   // a parameter or a view of one: never redistributed
  bool view = false;        // a view of another DTensor, whose memory the local tensor shares
  bool alias_lost = false;  // true for a view whose local tensor now has memory of its own
};

inline bool is_wrapped(const at::Tensor& t) {
  return t.defined() && t.key_set().has(kDTensorKey);
}
inline DTensorMeta& meta_of(const at::Tensor& wrapped) {
  return *static_cast<DTensorMeta*>(wrapped.unsafeGetTensorImpl()->get_backend_meta());
}

// Makes a DTensor, without autograd. The strides are those of the whole tensor and independent of
// the local ones: LibTorch's own code branches on strides, and all ranks must take the same branch.
// Empty strides mean contiguous.
at::Tensor wrap(at::Tensor local,
                Mesh& mesh,
                const Placements& placements,
                at::IntArrayRef sizes,
                at::IntArrayRef strides = {});

// Replaces the local tensor by one with other placements that holds the same value.
void replace_local(DTensorMeta& meta, at::Tensor local, const Placements& placements);

enum class ViewKind : uint8_t {
  kSameOrder,  // all elements in the same order
  kTranspose,  // a transposed matrix
  kOther,
};

// Marks `t` as the result of an operator that returns a view of `base`.
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

}  // namespace yoke::mesh
