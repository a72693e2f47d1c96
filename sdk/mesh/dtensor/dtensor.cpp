// Implements the public functions and the three autograd nodes that they need: RedistributeNode,
// ToLocalNode and FromLocalNode. Operators on DTensors need no node of ours: they are dispatched
// below autograd, so LibTorch's own formulas also run on DTensors in backward.
//
// The gradient of a Partial tensor is Replicate: the derivative of a sum with respect to each of
// its parts is the whole gradient. This is why forward and backward placements are not the same.
#include "sdk/mesh/dtensor/dtensor.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "sdk/mesh/dtensor/dispatch.hpp"
#include "sdk/mesh/dtensor/redistribute.hpp"
#include "sdk/mesh/dtensor/wrap.hpp"
#include "yoke/error.hpp"

namespace yoke::mesh {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Reaches the protected key set of a TensorImpl, which an in-place conversion must change.
struct Impl : c10::TensorImpl {
  static void set_keys(c10::TensorImpl* t, c10::DispatchKeySet keys) {
    t->*(&Impl::key_set_) = keys;
  }
};

DTensorMeta& require(const at::Tensor& t, const char* who) {
  if (is_wrapped(t)) return meta_of(t);
  throw Error(YOKE_FAILED_PRECONDITION,
              std::string(who) + ": the tensor is not distributed; distribute_tensor makes one");
}

void require_placements(const Mesh& mesh, const Placements& p, at::IntArrayRef sizes) {
  for (int a = 0; a < kMaxMeshAxes; ++a) {
    const bool known = a < mesh.ndim() || p[a].is_replicate();
    const bool fits =
        !p[a].is_shard() || (p[a].dim >= 0 && p[a].dim < static_cast<int64_t>(sizes.size()) &&
                             p[a].blocks >= 1 && sizes[p[a].dim] % p[a].blocks == 0);
    if (known && fits) continue;
    throw Error(YOKE_INVALID_ARGUMENT,
                "placements " + to_string(p, kMaxMeshAxes) + " do not fit a tensor of " +
                    std::to_string(sizes.size()) + " dims on a mesh of " +
                    std::to_string(mesh.ndim()) + " axes");
  }
}

// Returns the placements of the gradient of a tensor with placements p.
Placements of_gradient(Placements p) {
  for (Placement& placement : p) {
    if (placement.is_partial()) placement = replicate();
  }
  return p;
}

at::Tensor moved(const at::Tensor& t, const Placements& to) {
  DTensorMeta& meta = meta_of(t);
  return wrap(redistribute_local(*meta.mesh, meta.local, t.sizes().vec(), meta.placements, to),
              *meta.mesh,
              to,
              t.sizes());
}

struct RedistributeNode : torch::autograd::Function<RedistributeNode> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& t, std::vector<int64_t> to) {
    ctx->saved_data["from"] = bits_of(of_gradient(meta_of(t).placements));
    return moved(t, from_bits(to));
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {redistribute(grads[0], from_bits(ctx->saved_data["from"].toIntVector())), {}};
  }
};

struct ToLocalNode : torch::autograd::Function<ToLocalNode> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& t) {
    const DTensorMeta& meta = meta_of(t);
    ctx->saved_data["placements"] = bits_of(of_gradient(meta.placements));
    ctx->saved_data["mesh"] = reinterpret_cast<int64_t>(meta.mesh);
    ctx->saved_data["sizes"] = t.sizes().vec();
    return local_of(t).alias();
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {wrap(grads[0],
                 *reinterpret_cast<Mesh*>(ctx->saved_data["mesh"].toInt()),
                 from_bits(ctx->saved_data["placements"].toIntVector()),
                 ctx->saved_data["sizes"].toIntVector())};
  }
};

struct FromLocalNode : torch::autograd::Function<FromLocalNode> {
  static at::Tensor forward(AutogradContext* ctx,
                            const at::Tensor& local,
                            int64_t mesh,
                            std::vector<int64_t> placements,
                            std::vector<int64_t> sizes) {
    ctx->saved_data["placements"] = placements;
    return wrap(local.alias(), *reinterpret_cast<Mesh*>(mesh), from_bits(placements), sizes);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const Placements p = of_gradient(from_bits(ctx->saved_data["placements"].toIntVector()));
    const at::Tensor grad = is_wrapped(grads[0]) ? local_of(moved(grads[0], p)) : grads[0];
    return {grad, {}, {}, {}};
  }
};

}  // namespace

at::Tensor wrap(at::Tensor local,
                Mesh& mesh,
                const Placements& placements,
                at::IntArrayRef sizes,
                at::IntArrayRef strides) {
  // The constructor of TensorImpl adds the autograd keys itself.
  auto impl = c10::make_intrusive<c10::TensorImpl>(
      local.key_set().add(kDTensorKey) - c10::autograd_dispatch_keyset_with_ADInplaceOrView,
      local.dtype(),
      local.device());
  if (strides.empty()) {
    impl->set_sizes_contiguous(sizes);
  } else {
    impl->set_sizes_and_strides(sizes, strides);
  }
  // A DTensor has no memory of its own: an attempt to read it becomes an error in LibTorch instead
  // of a wrong number.
  impl->release_storage_and_set_meta_custom_data_ptr_error_msg_(std::nullopt);
  impl->set_backend_meta(c10::make_intrusive<DTensorMeta>(std::move(local), mesh, placements));
  return at::Tensor(std::move(impl));
}

void replace_local(DTensorMeta& meta, at::Tensor local, const Placements& placements) {
  meta.alias_lost = meta.view;
  meta.local = std::move(local);
  meta.placements = placements;
}

bool is_dtensor(const at::Tensor& t) {
  return is_wrapped(t);
}
Mesh& mesh_of(const at::Tensor& t) {
  return *require(t, "mesh_of").mesh;
}
const Placements& placements_of(const at::Tensor& t) {
  return require(t, "placements_of").placements;
}
const at::Tensor& local_of(const at::Tensor& t) {
  const DTensorMeta& meta = require(t, "local_of");
  meta.mesh->pending().compute(meta.local);
  return meta.local;
}

Placements placements(std::initializer_list<Placement> of_axes) {
  Placements p;
  std::copy_n(of_axes.begin(), std::min<size_t>(of_axes.size(), kMaxMeshAxes), p.begin());
  return p;
}

at::Tensor distribute_tensor(const at::Tensor& whole, Mesh& mesh, const Placements& placements) {
  return redistribute(from_local(whole, mesh, {}, whole.sizes()), placements);
}

at::Tensor from_local(const at::Tensor& local,
                      Mesh& mesh,
                      const Placements& placements,
                      at::IntArrayRef sizes) {
  register_dtensor();
  require_placements(mesh, placements, sizes);
  const Sizes expected = local_sizes(sizes.vec(), placements, mesh.coordinates());
  if (local.sizes() != at::IntArrayRef(expected)) {
    throw Error(YOKE_INVALID_ARGUMENT,
                "from_local: under " + to_string(placements, mesh.ndim()) +
                    " this rank's tensor must have other sizes than the given one, or the ranks of "
                    "an axis were given different sizes");
  }
  return FromLocalNode::apply(
      local, reinterpret_cast<int64_t>(&mesh), bits_of(placements), sizes.vec());
}

at::Tensor redistribute(const at::Tensor& t, const Placements& to) {
  require_placements(mesh_of(t), to, t.sizes());
  if (placements_of(t) == to) return t;
  return RedistributeNode::apply(t, bits_of(to));
}

at::Tensor full_tensor(const at::Tensor& t) {
  return to_local(redistribute(t, {}));
}

at::Tensor to_local(const at::Tensor& t) {
  require(t, "to_local");
  return ToLocalNode::apply(t);
}

void convert_parameter(const at::Tensor& leaf,
                       const at::Tensor& local,
                       Mesh& mesh,
                       const Placements& placements) {
  register_dtensor();
  require_placements(mesh, placements, leaf.sizes());
  // Every handle of the leaf shares this TensorImpl, so the change applies to all of them.
  c10::TensorImpl* impl = leaf.unsafeGetTensorImpl();
  Impl::set_keys(impl, impl->key_set().add(kDTensorKey));
  impl->release_storage_and_set_meta_custom_data_ptr_error_msg_(std::nullopt);
  auto meta = c10::make_intrusive<DTensorMeta>(local, mesh, placements);
  meta->parameter = true;
  impl->set_backend_meta(std::move(meta));
}

void revert_parameter(const at::Tensor& leaf) {
  if (!is_wrapped(leaf)) return;
  const at::Tensor plain = at::empty({0}, meta_of(leaf).local.options());
  plain.unsafeGetTensorImpl()->set_sizes_contiguous(leaf.sizes());
  leaf.unsafeGetTensorImpl()->set_backend_meta(nullptr);
  leaf.unsafeGetTensorImpl()->shallow_copy_from(plain.getIntrusivePtr());
}

}  // namespace yoke::mesh
