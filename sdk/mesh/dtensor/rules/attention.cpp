// These rules cover fused attention. Batch and heads may be cut freely, because the computation
// never combines different batches or heads; a cut sequence is computed by sequence_attention.hpp.
// Only the CPU's fused kernel has a rule here, which is why tp and cp are refused on a GPU.
#include <ATen/ATen.h>

#include "sdk/mesh/dtensor/rules/rules.hpp"
#include "sdk/mesh/dtensor/sequence_attention.hpp"

namespace yoke::mesh {
namespace {

constexpr int64_t kHeads = 1, kSequence = 2;

// The indices of the arguments that forward and backward have in common.
struct Arguments {
  size_t q, k, v, dropout, causal, mask, scale;
};
constexpr Arguments kForward{0, 1, 2, 3, 4, 5, 6};
constexpr Arguments kBackward{1, 2, 3, 6, 7, 8, 9};

// Returns the first axis that cuts the sequence of the queries, or -1.
int sequence_axis(const OpCall& call, const Placements& q) {
  for (int a = 0; a < call.mesh.ndim(); ++a) {
    if (q[a].is_shard(kSequence)) return a;
  }
  return -1;
}

// Returns the placement of a mask [queries, keys], or [batch or 1, heads or 1, queries, keys], if
// the queries have the placement p. The common mask of a cut sequence stays whole, because every
// tile needs another part of it.
Placement of_mask(const Operand& mask, const Operand& q, const Placement& p) {
  const bool cut = mask.ndim() == 4 && mask.sizes[p.dim] == q.sizes[p.dim];
  return cut ? p : replicate();
}

// Returns whether a mask can be used while an axis cuts the sequence. A plain mask for each batch
// would be cut in the natural order, which need not be that of the sequence.
bool fits_cut_sequence(const Operand& mask) {
  return mask.plain ? mask.ndim() == 2 : mask.ndim() == 4;
}

// Throws if the sequence is cut and the call cannot be computed in tiles.
void check_sequence(const OpCall& call, const Arguments& args, int axis) {
  if (axis < 0) return;
  const Operand &q = call.tensor(args.q), &k = call.tensor(args.k);
  if (call.args[args.dropout].toDouble() != 0)
    call.refuse("dropout is not possible while the sequence is cut");
  if (call.has_tensor(args.mask) &&
      (!fits_cut_sequence(call.tensor(args.mask)) || call.args[args.causal].toBool()))
    call.refuse(
        "while the sequence is cut, a mask must be a plain tensor [queries, keys] in the order of "
        "the positions, or a distributed tensor [batch, heads, queries, keys], and is_causal must "
        "be false");
  const bool head_tail = call.mesh.axis(axis).order == SequenceOrder::kHeadTail;
  const int64_t parts = call.mesh.size(axis) * (head_tail ? 2 : 1);
  if (q.sizes[kSequence] != k.sizes[kSequence] || q.sizes[kSequence] % parts != 0) {
    call.refuse(
        "a sequence that is cut must have the same length for queries and keys, a multiple of " +
        std::to_string(parts));
  }
}

// Returns the Ways in which all tensors are cut along the same dim; the dims of all of them start
// with batch, heads, sequence.
Ways attention_ways(const OpCall& call, const Arguments& args, int axis, size_t results) {
  const Operand &q = call.tensor(args.q), &k = call.tensor(args.k);
  Ways ways;
  const bool masked = call.has_tensor(args.mask);
  for (const Operand& o : call.operands) {
    const Placement& p = o.placements[axis];
    if (!p.is_shard() || p.blocks != 1 || p.dim > kSequence) continue;
    // A group of query heads must be on the rank of its key head.
    if (p.dim == kHeads && !(call.is_even(q, kHeads) && call.is_even(k, kHeads) &&
                             k.sizes[kHeads] % call.mesh.size(axis) == 0 &&
                             q.sizes[kHeads] % call.mesh.size(axis) == 0))
      continue;
    if (p.dim == kSequence && sequence_axis(call, q.placements) != axis) continue;
    Way way{std::vector<Placement>(call.operands.size(), p), std::vector<Placement>(results, p)};
    if (masked) way.in[call.first[args.mask]] = of_mask(call.tensor(args.mask), q, p);
    ways.push_back(std::move(way));
  }
  ways.push_back(all_replicate(call, results));
  return ways;
}

at::Tensor mask_of(const c10::IValue& value) {
  return value.isNone() ? at::Tensor() : value.toTensor();
}

std::optional<double> scale_of(const c10::IValue& value) {
  return value.isNone() ? std::nullopt : std::optional<double>(value.toDouble());
}

// (q, k, v, dropout, causal, mask?, scale?) -> (out, lse)
Decision forward(const OpCall& call) {
  const Operand &q = call.tensor(0), &v = call.tensor(2);
  check_sequence(call, kForward, sequence_axis(call, q.placements));
  Sizes out = q.sizes;
  out.back() = v.sizes.back();
  const Sizes lse(q.sizes.begin(), q.sizes.end() - 1);
  Decision decision =
      choose(call, [&](int axis) { return attention_ways(call, kForward, axis, 2); }, {out, lse});
  const int axis = sequence_axis(call, decision.inputs[0]);
  if (axis < 0) return decision;
  decision.kernel = [axis](Mesh& mesh, torch::jit::Stack& stack) {
    auto args = torch::jit::pop(stack, 7);
    const SequenceAttention attention{
        mesh, axis, args[4].toBool(), scale_of(args[6]), mask_of(args[5])};
    const auto result =
        attention.forward(args[0].toTensor(), args[1].toTensor(), args[2].toTensor());
    torch::jit::push(stack, result.out, result.lse);
  };
  return decision;
}

// (grad, q, k, v, out, lse, dropout, causal, mask?, scale?) -> (dq, dk, dv)
Decision backward(const OpCall& call) {
  const Operand &q = call.tensor(1), &k = call.tensor(2), &v = call.tensor(3);
  check_sequence(call, kBackward, sequence_axis(call, q.placements));
  Decision decision = choose(call,
                             [&](int axis) { return attention_ways(call, kBackward, axis, 3); },
                             {q.sizes, k.sizes, v.sizes});
  const int axis = sequence_axis(call, decision.inputs[1]);
  if (axis < 0) return decision;
  decision.kernel = [axis](Mesh& mesh, torch::jit::Stack& stack) {
    auto args = torch::jit::pop(stack, 10);
    const SequenceAttention attention{
        mesh, axis, args[7].toBool(), scale_of(args[9]), mask_of(args[8])};
    const auto grads = attention.backward(args[0].toTensor(),
                                          args[1].toTensor(),
                                          args[2].toTensor(),
                                          args[3].toTensor(),
                                          {args[4].toTensor(), args[5].toTensor()});
    torch::jit::push(stack, grads.q, grads.k, grads.v);
  };
  return decision;
}

// A call of this operator means that scaled_dot_product_attention chose its unfused form, which
// would gather whole attention matrices.
Decision math_path(const OpCall& call) {
  call.refuse(
      "scaled_dot_product_attention takes LibTorch's math path here; allowed: shapes and types "
      "with a fused kernel (no mask that needs a gradient, no dropout, the same head size for keys "
      "and values)");
}

}  // namespace

void add_attention_rules(RuleTable& rules) {
  rules["aten::_scaled_dot_product_flash_attention_for_cpu"] = forward;
  rules["aten::_scaled_dot_product_flash_attention_for_cpu_backward"] = backward;
  rules["aten::_safe_softmax"] = math_path;
}

}  // namespace yoke::mesh
