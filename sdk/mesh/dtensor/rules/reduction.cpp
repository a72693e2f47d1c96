// These rules cover sums, means and maxima over some dims. Over a dim that is cut, each rank
// reduces its part, and the result is Partial with the same operation. A mean is Partial only if
// the parts have equal size.
#include <algorithm>

#include "sdk/mesh/dtensor/rules/rules.hpp"

namespace yoke::mesh {
namespace {

struct Reduced {
  std::vector<bool> dims;
  bool keep;
};

Sizes sizes_of(const Sizes& in, const Reduced& reduced) {
  Sizes out;
  for (size_t d = 0; d < in.size(); ++d) {
    if (!reduced.dims[d])
      out.push_back(in[d]);
    else if (reduced.keep)
      out.push_back(1);
  }
  return out;
}

Decision reduce(const OpCall& call, const Reduced& reduced, Reduce how) {
  const Operand& x = call.operands[0];
  return choose(call,
                [&](int axis) {
                  const Placement& p = x.placements[axis];
                  Ways ways;
                  if (p.is_shard() && !reduced.dims[p.dim]) {
                    const auto gone =
                        std::count(reduced.dims.begin(), reduced.dims.begin() + p.dim, true);
                    ways.push_back({{p}, {shard(p.dim - (reduced.keep ? 0 : gone), p.blocks)}});
                  } else if (p.is_shard() && (how != Reduce::kAvg || call.is_even(x, p.dim))) {
                    ways.push_back({{p}, {partial(how)}});
                  } else if (p.is_partial() && how != Reduce::kMax && p.reduce != Reduce::kMax) {
                    ways.push_back({{p}, {p}});
                  }
                  ways.push_back(all_replicate(call, 1));
                  return ways;
                },
                {sizes_of(x.sizes, reduced)});
}

// Makes a rule for operators with dims as argument 1 (none = all) and keepdim as argument 2.
OpRule over_dims(Reduce how) {
  return [how](const OpCall& call) {
    const int64_t ndim = call.operands[0].ndim();
    const Sizes dims = call.args.size() > 1 ? call.ints(1) : Sizes{};
    Reduced reduced{std::vector<bool>(ndim, dims.empty()),
                    call.args.size() > 2 && call.args[2].isBool() && call.boolean(2)};
    for (const int64_t d : dims) reduced.dims[d < 0 ? d + ndim : d] = true;
    return reduce(call, reduced, how);
  };
}

// Makes a rule for reductions over all dims, whose other arguments are not dims.
OpRule over_all(Reduce how) {
  return [how](const OpCall& call) {
    return reduce(call, {std::vector<bool>(call.operands[0].ndim(), true), false}, how);
  };
}

// (self, ord, dim?, keepdim, dtype?). The norm cannot be combined from norms of parts by a Reduce
// operation, so operands are gathered.
Decision norm(const OpCall& call) {
  const Operand& x = call.operands[0];
  const Sizes dims = call.ints(2);
  Reduced reduced{std::vector<bool>(x.ndim(), dims.empty()), call.boolean(3)};
  for (const int64_t d : dims) reduced.dims[d < 0 ? d + x.ndim() : d] = true;
  return choose(
      call, [&](int) { return Ways{all_replicate(call, 1)}; }, {sizes_of(x.sizes, reduced)});
}

// Returns the decision for operators that return a number to the host. Every rank needs that
// number, so the operand is gathered.
Decision number(const OpCall& call) {
  return choose(call, [&](int) { return Ways{all_replicate(call, 0)}; }, {});
}

}  // namespace

void add_reduction_rules(RuleTable& rules) {
  rules["aten::sum"] = over_all(Reduce::kSum);
  rules["aten::mean"] = over_all(Reduce::kAvg);
  rules["aten::max"] = over_all(Reduce::kMax);
  rules["aten::sum.dim_IntList"] = over_dims(Reduce::kSum);
  rules["aten::mean.dim"] = over_dims(Reduce::kAvg);
  rules["aten::amax"] = over_dims(Reduce::kMax);
  rules["aten::linalg_vector_norm"] = norm;
  rules["aten::_local_scalar_dense"] = number;
}

}  // namespace yoke::mesh
