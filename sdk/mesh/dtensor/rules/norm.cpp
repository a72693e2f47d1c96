// These rules cover layer normalisation over the last dims, which must not be cut. Rows may be cut;
// the weights are Replicate, so their gradients are Partial.
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

// (input, normalized_shape, weight?, bias?, eps) -> (out, mean, rstd)
Decision layer_norm(const OpCall& call) {
  const Operand& x = call.tensor(0);
  const auto from = x.ndim() - static_cast<int64_t>(call.ints(1).size());
  Sizes statistics = x.sizes;
  for (int64_t d = from; d < x.ndim(); ++d) statistics[d] = 1;
  return choose(call,
                [&](int axis) {
                  const Placement& p = x.placements[axis];
                  Ways ways;
                  if (cuts_rows(p, from)) {
                    Way way = all_replicate(call, 3);
                    way.in[0] = p;
                    way.out = {p, p, p};
                    ways.push_back(way);
                  }
                  ways.push_back(all_replicate(call, 3));
                  return ways;
                },
                {x.sizes, statistics, statistics});
}

// (grad_out, input, normalized_shape, mean, rstd, weight?, bias?, output_mask) -> (dx, dw, db)
Decision layer_norm_backward(const OpCall& call) {
  const Operand& x = call.tensor(1);
  const Sizes normalized = call.ints(2);
  const auto from = x.ndim() - static_cast<int64_t>(normalized.size());
  return choose(call,
                [&](int axis) {
                  const Placement& p = x.placements[axis];
                  Ways ways;
                  if (cuts_rows(p, from)) {
                    Way way = all_replicate(call, 3);
                    for (const size_t arg : {0, 1, 3, 4})
                      way.in[call.first[arg]] = rows_or_replicate(call.tensor(arg), p);
                    way.out = {p, partial(), partial()};
                    ways.push_back(way);
                  }
                  ways.push_back(all_replicate(call, 3));
                  return ways;
                },
                {x.sizes, normalized, normalized});
}

}  // namespace

void add_norm_rules(RuleTable& rules) {
  rules["aten::native_layer_norm"] = layer_norm;
  rules["aten::native_layer_norm_backward"] = layer_norm_backward;
}

}  // namespace yoke::mesh
