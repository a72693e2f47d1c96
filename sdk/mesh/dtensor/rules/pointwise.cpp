// These rules cover operators that compute each result element from the operands' elements at the
// same position, after broadcasting. They run on local tensors if all operands are cut alike. Where
// an operator is linear in its Partial operands, its result may stay Partial: adding two Partial
// tensors, or multiplying one by a number, needs no communication. Sequence parallelism is
// implemented here: a Partial activation whose values are needed may become Shard(1) by a
// reduce-scatter, which is half the traffic of an all-reduce.
#include <ATen/ATen.h>

#include <algorithm>

#include "sdk/mesh/dtensor/rules/rules.hpp"

namespace yoke::mesh {
namespace {

// Returns the placement of an operand that fits a cut of the result: Replicate if the operand does
// not have that dim or broadcasts it.
Placement in_operand(const Operand& o, const Sizes& out, const Placement& cut) {
  const int64_t dim = cut.dim - (static_cast<int64_t>(out.size()) - o.ndim());
  if (dim < 0 || o.sizes[dim] != out[cut.dim]) return replicate();
  return shard(dim, cut.blocks);
}

bool contains(const std::vector<Placement>& list, const Placement& p) {
  return std::find(list.begin(), list.end(), p) != list.end();
}

// Returns the cuts of the result to consider: those of the operands, and Shard(1) for sequence
// parallelism.
std::vector<Placement> cuts(const OpCall& call, int axis, const Sizes& out) {
  std::vector<Placement> found;
  bool has_partial = false;
  for (const Operand& o : call.operands) {
    const Placement& p = o.placements[axis];
    has_partial = has_partial || p.is_partial();
    if (!p.is_shard()) continue;
    const int64_t dim = p.dim + static_cast<int64_t>(out.size()) - o.ndim();
    if (o.sizes[p.dim] == out[dim] && !contains(found, shard(dim, p.blocks)))
      found.push_back(shard(dim, p.blocks));
  }
  const bool sequence = has_partial && call.mesh.axis(axis).sequence_parallel && out.size() >= 3 &&
                        out[1] % call.mesh.size(axis) == 0;
  if (sequence && !contains(found, shard(1))) found.push_back(shard(1));
  return found;
}

Way cut_way(const OpCall& call, const Sizes& out, const Placement& cut) {
  Way way;
  for (const Operand& o : call.operands) way.in.push_back(in_operand(o, out, cut));
  way.out = {cut};
  return way;
}

enum class Kind : uint8_t {
  kPlain,     // is not linear: needs the complete values of its operands
  kSum,       // is linear in all operands together: add, sub
  kProduct,   // is linear in each operand separately: mul
  kQuotient,  // is linear in the first operand: div
};

// Adds the Way in which Partial operands stay Partial, if the operator is linear in them.
void add_partial_way(Ways& ways, const OpCall& call, int axis, Kind kind) {
  const auto is_partial = [&](const Operand& o) { return o.placements[axis].is_partial(); };
  const auto partials = std::count_if(call.operands.begin(), call.operands.end(), is_partial);
  if (kind == Kind::kPlain || partials == 0) return;
  const auto first = std::find_if(call.operands.begin(), call.operands.end(), is_partial);
  const Placement p = first->placements[axis];
  if (p.reduce == Reduce::kMax) return;
  Way way{{}, {p}};
  for (const Operand& o : call.operands) way.in.push_back(o.placements[axis]);
  if (kind == Kind::kSum) {
    const bool same = std::all_of(
        way.in.begin(), way.in.end(), [&](const Placement& other) { return other == p; });
    if (!same) return;
  } else {
    // The other operand must be a single number that every rank has.
    const bool at_front = first == call.operands.begin();
    if (partials > 1 || (kind == Kind::kQuotient && !at_front)) return;
    for (const Operand& o : call.operands) {
      if (!is_partial(o) && (o.numel() != 1 || !o.placements[axis].is_replicate())) return;
    }
  }
  ways.push_back(std::move(way));
}

// Removes the Ways that an in-place operator cannot use: its result is operand 0 itself, so both
// must have the same placement.
void keep_in_place(Ways& ways) {
  std::erase_if(ways, [&](const Way& way) { return way.in[0] != way.out[0]; });
}

OpRule pointwise(Kind kind) {
  return [kind](const OpCall& call) {
    const bool in_place = call.operands[0].written;
    const Sizes out = in_place ? call.operands[0].sizes : broadcast_sizes(call);
    return choose(call,
                  [&](int axis) {
                    Ways ways;
                    add_partial_way(ways, call, axis, kind);
                    for (Way& way : pointwise_ways(call, axis, out, false)) ways.push_back(way);
                    if (in_place) keep_in_place(ways);
                    return ways;
                  },
                  {out});
  };
}

// Computes add(x, y, alpha). The sum of two pending products is pending: the gradient of an input
// that several matrices multiply.
void add_products(Mesh& mesh, torch::jit::Stack& stack) {
  const auto args = torch::jit::pop(stack, 3);
  const at::Tensor &x = args[0].toTensor(), &y = args[1].toTensor();
  const at::Scalar alpha = args[2].toScalar();
  at::Tensor sum = alpha.equal(1) ? mesh.pending().sum(x, y) : at::Tensor();
  if (!sum.defined()) {
    mesh.pending().compute(x);
    mesh.pending().compute(y);
    sum = at::add(x, y, alpha);
  }
  torch::jit::push(stack, std::move(sum));
}

Decision add_tensors(const OpCall& call) {
  Decision decision = pointwise(Kind::kSum)(call);
  if (is_sum_in_pieces(call.mesh, decision.outputs[0].placements)) {
    decision.kernel = add_products;
    decision.takes_pending = true;
  }
  return decision;
}

// Returns the decision for operators that overwrite operand 0. A Partial source may be copied to a
// destination that is also Partial.
Decision overwrite(const OpCall& call) {
  return choose(call,
                [&](int axis) {
                  Ways ways = pointwise_ways(call, axis, call.operands[0].sizes, false);
                  const bool copy = call.operands.size() == 2;
                  if (copy) add_partial_way(ways, call, axis, Kind::kSum);
                  keep_in_place(ways);
                  return ways;
                },
                {call.operands[0].sizes});
}

// clang-format off
constexpr const char* kPlain[] = {
    "abs", "acos", "asin", "atan", "bitwise_not", "ceil", "cos", "cosh", "erf", "erfc", "exp",
    "exp2", "expm1", "floor", "gelu", "gelu_backward", "hardtanh", "isfinite", "isinf", "isnan",
    "leaky_relu", "leaky_relu_backward", "log", "log10", "log1p", "log2", "logical_not", "logit",
    "mish", "nan_to_num", "reciprocal", "relu", "relu_", "round", "rsqrt", "rsqrt_", "sigmoid",
    "sigmoid_", "sigmoid_backward", "sign", "silu", "silu_", "silu_backward", "sin", "sinh",
    "softplus", "softplus_backward", "sqrt", "sqrt_", "tan", "tanh", "tanh_", "tanh_backward",
    "threshold_backward", "trunc", "elu", "elu_backward", "hardswish", "hardswish_backward",
    "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "pow_.Scalar", "square", "clamp",
    "clamp_", "clamp_min", "clamp_min_", "clamp_max", "maximum", "minimum", "fmod.Scalar",
    "remainder.Scalar", "lerp.Scalar", "lerp.Tensor", "lerp_.Scalar", "addcmul", "addcdiv",
    "addcmul_", "addcdiv_", "where.self", "masked_fill.Scalar", "masked_fill_.Scalar",
    "masked_fill.Tensor", "eq.Scalar", "eq.Tensor", "ne.Scalar", "ne.Tensor", "lt.Scalar",
    "lt.Tensor", "le.Scalar", "le.Tensor", "gt.Scalar", "gt.Tensor", "ge.Scalar", "ge.Tensor",
    "logical_and", "logical_or", "logical_xor", "bitwise_and.Tensor", "bitwise_or.Tensor",
    "add.Scalar", "add_.Scalar", "sub.Scalar", "sub_.Scalar", "rsub.Scalar", "_to_copy",
};
constexpr const char* kSums[] = {
    "add.Tensor", "add_.Tensor", "sub.Tensor", "sub_.Tensor", "neg", "neg_", "clone", "positive",
    "mul.Scalar", "mul_.Scalar", "div.Scalar", "div_.Scalar", "lift_fresh",
};
constexpr const char* kProducts[] = {
    "mul.Tensor", "mul_.Tensor",
};
constexpr const char* kQuotients[] = {
    "div.Tensor", "div_.Tensor",
};
constexpr const char* kOverwrites[] = {
    "copy_", "fill_.Scalar", "fill_.Tensor", "zero_",
};
// clang-format on

}  // namespace

Sizes broadcast_sizes(const OpCall& call) {
  size_t ndim = 0;
  for (const Operand& o : call.operands) ndim = std::max(ndim, o.sizes.size());
  Sizes out(ndim, 1);
  for (const Operand& o : call.operands) {
    for (size_t d = 0; d < o.sizes.size(); ++d) {
      if (o.sizes[d] != 1) out[ndim - o.sizes.size() + d] = o.sizes[d];
    }
  }
  return out;
}

Ways pointwise_ways(const OpCall& call, int axis, const Sizes& out, bool linear) {
  Ways ways;
  if (linear) add_partial_way(ways, call, axis, Kind::kSum);
  for (const Placement& cut : cuts(call, axis, out)) ways.push_back(cut_way(call, out, cut));
  ways.push_back({std::vector<Placement>(call.operands.size()), {replicate()}});
  return ways;
}

void add_pointwise_rules(RuleTable& rules) {
  const auto add = [&](at::ArrayRef<const char*> names, const OpRule& rule) {
    for (const char* name : names) rules[std::string("aten::") + name] = rule;
  };
  add(kPlain, pointwise(Kind::kPlain));
  add(kSums, pointwise(Kind::kSum));
  add(kProducts, pointwise(Kind::kProduct));
  add(kQuotients, pointwise(Kind::kQuotient));
  add(kOverwrites, overwrite);
  rules["aten::add.Tensor"] = add_tensors;
}

}  // namespace yoke::mesh
