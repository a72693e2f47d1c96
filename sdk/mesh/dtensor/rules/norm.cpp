// These rules cover layer normalisation and RMSNorm over the last dims, which must not be cut. Rows
// may be cut; the weights are Replicate, so their gradients are Partial.
#include <algorithm>

#include "sdk/mesh/dtensor/rules/rules.hpp"

namespace yoke::mesh {
namespace {

// Returns true if p cuts a dim before the normalised ones.
bool cuts_rows(const Placement& p, int64_t normalized_from) {
  return p.is_shard() && p.dim < normalized_from;
}

// Returns `cut` for activations and statistics, which have the dims of the rows, and Replicate for
// weights.
Placement rows_or_replicate(const Operand& o, const Placement& cut) {
  return cut.dim < o.ndim() && o.ndim() > 1 ? cut : replicate();
}

// Operators (input, normalized_shape, weight?, ...) whose results are the output and `statistics`
// numbers for each row.
Decision norm(const OpCall& call, size_t statistics) {
  const Operand& x = call.tensor(0);
  const auto from = x.ndim() - static_cast<int64_t>(call.ints(1).size());
  std::vector<Sizes> results(1 + statistics, x.sizes);
  for (size_t i = 1; i < results.size(); ++i)
    std::fill(results[i].begin() + from, results[i].end(), 1);
  const auto ways = [&](int axis) {
    const Placement& p = x.placements[axis];
    const Way whole = all_replicate(call, results.size());
    if (!cuts_rows(p, from)) return Ways{whole};
    Way way = whole;
    way.in[0] = p;
    way.out.assign(results.size(), p);
    return Ways{way, whole};
  };
  return choose(call, ways, results);
}

// Operators (grad_out, input, normalized_shape, ...) whose results are the gradients of the input
// and of `weights` weights. of_rows: the arguments that have the dims of the rows.
Decision norm_backward(const OpCall& call, std::initializer_list<size_t> of_rows, size_t weights) {
  const Operand& x = call.tensor(1);
  const Sizes normalized = call.ints(2);
  const auto from = x.ndim() - static_cast<int64_t>(normalized.size());
  std::vector<Sizes> results(1 + weights, normalized);
  results[0] = x.sizes;
  const auto ways = [&](int axis) {
    const Placement& p = x.placements[axis];
    const Way whole = all_replicate(call, results.size());
    if (!cuts_rows(p, from)) return Ways{whole};
    Way way = whole;
    for (const size_t arg : of_rows)
      way.in[call.first[arg]] = rows_or_replicate(call.tensor(arg), p);
    way.out.assign(results.size(), partial());
    way.out[0] = p;
    return Ways{way, whole};
  };
  return choose(call, ways, results);
}

}  // namespace

void add_norm_rules(RuleTable& rules) {
  // (input, normalized_shape, weight?, bias?, eps) -> (out, mean, rstd)
  rules["aten::native_layer_norm"] = [](const OpCall& call) { return norm(call, 2); };
  // (grad_out, input, normalized_shape, mean, rstd, weight?, bias?, output_mask) -> (dx, dw, db)
  rules["aten::native_layer_norm_backward"] = [](const OpCall& call) {
    return norm_backward(call, {0, 1, 3, 4}, 2);
  };
  // CUDA has kernels of its own for RMSNorm. On the CPU LibTorch composes it above autograd.
  // (input, normalized_shape, weight?, eps?) -> (out, rstd)
  rules["aten::_fused_rms_norm"] = [](const OpCall& call) { return norm(call, 1); };
  // (grad_out, input, normalized_shape, rstd, weight?, output_mask) -> (dx, dw)
  rules["aten::_fused_rms_norm_backward"] = [](const OpCall& call) {
    return norm_backward(call, {0, 1, 3}, 1);
  };
}

}  // namespace yoke::mesh
