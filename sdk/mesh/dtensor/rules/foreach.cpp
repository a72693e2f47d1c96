// These rules cover operators over lists of tensors. The placements of each list element are
// decided separately, as for a pointwise operator, so lists may mix placements, DTensors and plain
// tensors. PyTorch 2.11 leaves Partial elements of such lists as they are and clips wrongly under
// TP with SP.
#include "sdk/mesh/dtensor/rules/rules.hpp"

namespace yoke::mesh {
namespace {

// Makes a rule. Argument 0 is the list that the operator writes to, or that has the sizes of the
// results. Further tensor arguments are lists of the same length, or one tensor for all elements.
// linear: the operator is linear in all lists together.
OpRule foreach (bool linear) {
  return [linear](const OpCall& call) {
    const int64_t n = call.list_size(0);
    Decision decision;
    decision.inputs.resize(call.operands.size());
    for (int64_t i = 0; i < n; ++i) {
      OpCall item{call.name, call.schema, call.args, call.mesh, {}, {}};
      std::vector<size_t> where;
      for (size_t arg = 0; arg < call.args.size(); ++arg) {
        if (!call.has_tensor(arg)) continue;
        const size_t at = call.first[arg] + (call.args[arg].isTensorList() ? i : 0);
        item.operands.push_back(call.operands[at]);
        where.push_back(at);
      }
      const Sizes out = item.operands[0].written ? item.operands[0].sizes : broadcast_sizes(item);
      const Decision one =
          choose(item,
                 [&](int axis) {
                   Ways ways = pointwise_ways(item, axis, out, linear);
                   if (item.operands[0].written)
                     std::erase_if(ways, [](const Way& way) { return way.in[0] != way.out[0]; });
                   return ways;
                 },
                 {out});
      for (size_t k = 0; k < where.size(); ++k) decision.inputs[where[k]] = one.inputs[k];
      decision.outputs.push_back(one.outputs[0]);
    }
    return decision;
  };
}

// clang-format off
// These operators are linear in their lists: a Partial element times a number stays Partial.
constexpr const char* kLinear[] = {
    "_foreach_add.List", "_foreach_add_.List", "_foreach_sub.List", "_foreach_sub_.List",
    "_foreach_mul.Scalar", "_foreach_mul_.Scalar", "_foreach_div.Scalar", "_foreach_div_.Scalar",
    "_foreach_mul.ScalarList", "_foreach_mul_.ScalarList", "_foreach_neg", "_foreach_neg_",
};
constexpr const char* kOthers[] = {
    "_foreach_add.Scalar", "_foreach_add_.Scalar", "_foreach_mul.List", "_foreach_mul_.List",
    "_foreach_mul.Tensor", "_foreach_mul_.Tensor", "_foreach_div.List", "_foreach_div_.List",
    "_foreach_sqrt", "_foreach_sqrt_", "_foreach_addcmul_.Scalar", "_foreach_addcdiv_.Scalar",
    "_foreach_addcdiv_.ScalarList", "_foreach_lerp_.Scalar", "_foreach_copy_", "_foreach_zero_",
    "_foreach_pow.List", "_foreach_maximum_.List",
};
// clang-format on

}  // namespace

void add_foreach_rules(RuleTable& rules) {
  for (const char* name : kLinear) rules[std::string("aten::") + name] = foreach (true);
  for (const char* name : kOthers) rules[std::string("aten::") + name] = foreach (false);
}

}  // namespace yoke::mesh
