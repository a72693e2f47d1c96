// LibTorch decomposes scaled_dot_product_attention above autograd, into one of several fused
// operators, which one depending on device, type and shapes. A rule for each of them would have to
// follow LibTorch's choice, and their extra results. Here the composition itself is replaced: local
// tensors are passed to it, so every fused operator can be used, on every device, without a rule.
#include "sdk/mesh/dtensor/attention.hpp"

#include <ATen/ATen.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>
#include <ATen/ops/scaled_dot_product_attention_ops.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "sdk/mesh/dtensor/dtensor.hpp"
#include "sdk/mesh/dtensor/sequence_attention.hpp"
#include "sdk/mesh/dtensor/wrap.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke::mesh {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kHeads = 1, kSequence = 2;

// The arguments of the operator, in their order. q are [B, H, S, D], k and v [B, Hkv, S, D].
struct Call {
  at::Tensor q, k, v;
  std::optional<at::Tensor> given_mask;
  double dropout;
  bool causal;
  std::optional<double> scale;
  bool grouped;

  // Returns the mask; an undefined tensor means none.
  at::Tensor mask() const { return given_mask.value_or(at::Tensor()); }
};

bool is_distributed(const Call& call) {
  return is_wrapped(call.q) || is_wrapped(call.k) || is_wrapped(call.v) || is_wrapped(call.mask());
}

[[noreturn]] void refuse(std::string_view why) {
  throw Error(YOKE_INVALID_ARGUMENT,
              concat("scaled_dot_product_attention of distributed tensors: ", why));
}

Mesh& mesh_of(const Call& call) {
  for (const at::Tensor* t : {&call.q, &call.k, &call.v}) {
    if (is_wrapped(*t)) return *meta_of(*t).mesh;
  }
  return *meta_of(call.mask()).mesh;
}

// How a call is cut. sequence: axis that cuts the sequence, or -1.
struct Cut {
  Placements placements;  // those of q, k and v
  int sequence = -1;
};

// Chooses for each axis the cut of the first tensor that has one which is possible.
class Chooser {
 public:
  explicit Chooser(const Call& call) : call_(call), mesh_(mesh_of(call)) {}

  Cut choose() {
    for (int a = 0; a < mesh_.ndim(); ++a) {
      for (const at::Tensor* t : {&call_.q, &call_.k, &call_.v}) {
        if (!is_wrapped(*t) || !is_possible(a, meta_of(*t).placements[a])) continue;
        take(a, meta_of(*t).placements[a]);
        break;
      }
    }
    return cut_;
  }

 private:
  // A group of query heads must be on the rank of its key head.
  bool is_possible(int axis, const Placement& p) const {
    if (!p.is_shard() || p.blocks != 1) return false;
    const int64_t parts = parts_of_heads_ * mesh_.size(axis);
    if (p.dim == kHeads)
      return call_.q.size(kHeads) % parts == 0 && call_.k.size(kHeads) % parts == 0;
    return p.dim == 0 || (p.dim == kSequence && cut_.sequence < 0);
  }
  void take(int axis, const Placement& p) {
    cut_.placements[axis] = p;
    if (p.dim == kHeads) parts_of_heads_ *= mesh_.size(axis);
    if (p.dim == kSequence && mesh_.size(axis) > 1) cut_.sequence = axis;
  }

  const Call& call_;
  const Mesh& mesh_;
  Cut cut_;
  int64_t parts_of_heads_ = 1;
};

// Throws if a cut sequence cannot be computed in tiles. A plain mask for each batch would be cut in
// the natural order, which need not be that of the sequence.
void check_sequence(const Call& call, const Mesh& mesh, int axis) {
  const at::Tensor mask = call.mask();
  if (mask.defined() && mask.requires_grad())
    refuse("while the sequence is cut, a mask must not need a gradient");
  if (mask.defined() && (call.causal || mask.dim() != (is_wrapped(mask) ? 4 : 2)))
    refuse(
        "while the sequence is cut, a mask must be a plain tensor [queries, keys] in the order of "
        "the positions, or a distributed tensor [batch, heads, queries, keys], and is_causal must "
        "be false");
  const bool head_tail = mesh.axis(axis).order == SequenceOrder::kHeadTail;
  const int64_t parts = mesh.size(axis) * (head_tail ? 2 : 1);
  if (call.q.size(kSequence) != call.k.size(kSequence) || call.q.size(kSequence) % parts != 0)
    refuse(
        concat("a sequence that is cut must have the same length for queries and keys, a "
               "multiple of ",
               parts));
}

// Returns this rank's part of a tensor; a plain one is the same on all ranks.
at::Tensor local_part(const at::Tensor& t, Mesh& mesh, const Placements& placements) {
  const at::Tensor wrapped = is_wrapped(t) ? t : from_local(t, mesh, {}, t.sizes());
  return to_local(redistribute(wrapped, placements));
}

// Returns this rank's part of the mask: it is cut like the queries along the dims that have their
// size. The common mask [queries, keys] of a cut sequence stays whole, because every tile needs
// another part of it.
at::Tensor local_mask(const Call& call, Mesh& mesh, const Cut& cut) {
  at::Tensor mask = call.mask();
  if (!mask.defined()) return {};
  if (mask.dim() == 3) mask = mask.unsqueeze(0);
  Placements placements;
  for (int a = 0; a < mesh.ndim() && mask.dim() == 4; ++a) {
    const Placement& p = cut.placements[a];
    if (p.is_shard() && mask.size(p.dim) == call.q.size(p.dim)) placements[a] = p;
  }
  return local_part(mask, mesh, placements);
}

// Attention along an axis that cuts the sequence. All tensors are local.
struct SequenceNode : torch::autograd::Function<SequenceNode> {
  static at::Tensor forward(AutogradContext* ctx,
                            const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            const SequenceAttention& attention) {
    const SequenceAttention::Result result = attention.forward(q, k, v);
    ctx->save_for_backward({q, k, v, attention.mask, result.out, result.lse});
    ctx->saved_data["mesh"] = reinterpret_cast<int64_t>(&attention.mesh);
    ctx->saved_data["axis"] = static_cast<int64_t>(attention.axis);
    ctx->saved_data["causal"] = attention.causal;
    ctx->saved_data["scale"] = attention.scale;
    return result.out;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (at::GradMode::is_enabled()) refuse("second derivatives are not supported");
    const variable_list saved = ctx->get_saved_variables();
    const SequenceAttention attention{*reinterpret_cast<Mesh*>(ctx->saved_data["mesh"].toInt()),
                                      static_cast<int>(ctx->saved_data["axis"].toInt()),
                                      ctx->saved_data["causal"].toBool(),
                                      ctx->saved_data["scale"].toOptional<double>(),
                                      saved[3]};
    const auto [dq, dk, dv] =
        attention.backward(grads[0], saved[0], saved[1], saved[2], {saved[4], saved[5]});
    return {dq, dk, dv, {}};
  }
};

// Returns a mask that is added to scores: -inf where a boolean mask is false.
at::Tensor as_summand(const at::Tensor& mask, at::ScalarType type) {
  if (!mask.defined() || mask.scalar_type() != at::kBool) return mask;
  return at::zeros(mask.sizes(), mask.options().dtype(type))
      .masked_fill_(mask.logical_not(), -INFINITY);
}

// On CUDA only the kernels for 16-bit types support groups of heads. For others LibTorch would
// store all scores, so the heads are repeated instead.
Call without_groups(const Call& local) {
  const bool half = local.q.scalar_type() == at::kBFloat16 || local.q.scalar_type() == at::kHalf;
  const int64_t groups = local.q.size(kHeads) / local.k.size(kHeads);
  if (!local.q.is_cuda() || groups == 1 || (half && !local.given_mask)) return local;
  Call repeated = local;
  repeated.k = local.k.repeat_interleave(groups, kHeads);
  repeated.v = local.v.repeat_interleave(groups, kHeads);
  return repeated;
}

at::Tensor distributed(const Call& call) {
  Mesh& mesh = mesh_of(call);
  const Cut cut = Chooser(call).choose();
  if (cut.sequence >= 0) check_sequence(call, mesh, cut.sequence);
  Call local = call;
  local.q = local_part(call.q, mesh, cut.placements);
  local.k = local_part(call.k, mesh, cut.placements);
  local.v = local_part(call.v, mesh, cut.placements);
  const at::Tensor mask = local_mask(call, mesh, cut);
  local.given_mask = mask.defined() ? std::optional(mask) : std::nullopt;
  at::Tensor out;
  if (cut.sequence >= 0) {
    const SequenceAttention attention{
        mesh, cut.sequence, call.causal, call.scale, as_summand(mask, local.q.scalar_type())};
    out = SequenceNode::apply(local.q, local.k, local.v, attention);
  } else {
    local = without_groups(local);
    out = at::scaled_dot_product_attention(local.q,
                                           local.k,
                                           local.v,
                                           local.given_mask,
                                           0.0,
                                           call.causal,
                                           call.scale,
                                           local.q.size(kHeads) != local.k.size(kHeads));
  }
  Sizes sizes = call.q.sizes().vec();
  sizes.back() = call.v.size(-1);
  mesh.trace().print(
      concat("aten::scaled_dot_product_attention  ", to_string(cut.placements, mesh.ndim())));
  return from_local(out, mesh, cut.placements, sizes);
}

// Throws for calls that are possible with plain tensors only.
void check(const Call& call) {
  if (call.dropout != 0)
    refuse("dropout is not supported, because ranks would drop different scores");
  if (call.q.dim() != 4 || call.k.dim() != 4 || call.v.dim() != 4)
    refuse("allowed: tensors [batch, heads, sequence, size of a head]");
}

// The kernel, with the parameters of the operator.
template <class Schema>
struct Typed;
template <class... A>
struct Typed<at::Tensor(A...)> {
  static at::Tensor call(A... args) {
    const Call call{args...};
    if (!is_distributed(call)) return at::native::scaled_dot_product_attention(args...);
    check(call);
    return distributed(call);
  }
};

}  // namespace

void register_attention(torch::Library& aten_autograd) {
  using Schema = at::_ops::scaled_dot_product_attention::schema;
  aten_autograd.impl("scaled_dot_product_attention", torch::CppFunction(&Typed<Schema>::call));
}

}  // namespace yoke::mesh
