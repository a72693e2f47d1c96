// These rules cover operators that make new tensors with the sizes, or only the options, of an
// existing one.
#include "sdk/mesh/dtensor/rules/rules.hpp"

namespace yoke::mesh {
namespace {

// Gives the result the placements of the operand. value: true if the result is filled with a
// constant. Where the operand is Partial, such a result is Replicate, because a sum of constants is
// a different value. An uninitialised result may stay Partial.
Decision like(const OpCall& call, bool value) {
  const Operand& self = call.operands[0];
  Decision decision;
  decision.inputs = {self.placements};
  Placements out = self.placements;
  for (Placement& p : out) {
    if (p.is_partial() && value) p = replicate();
  }
  decision.outputs = {{out, self.sizes, {}}};
  return decision;
}

// Returns the decision for new_zeros and similar operators, whose argument 1 is the sizes. A result
// whose sizes differ from those of the operand is Replicate.
Decision of_sizes(const OpCall& call, bool value) {
  Decision decision = like(call, value);
  const Sizes sizes = call.ints(1);
  Decision::Output& out = decision.outputs[0];
  if (sizes != call.operands[0].sizes) out = {{}, sizes, {}};
  decision.ints = {{1, local_sizes(sizes, out.placements, call.mesh.coordinates())}};
  return decision;
}

// Returns the decision for new_empty_strided, whose argument 2 is the global strides.
Decision strided(const OpCall& call) {
  Decision decision = of_sizes(call, false);
  // The local strides order the dims as the given strides do, but fit the local sizes.
  const Sizes& sizes = decision.ints[0].values;
  const Sizes given = call.ints(2);
  Sizes strides(sizes.size(), 1);
  for (size_t d = 0; d < sizes.size(); ++d) {
    for (size_t e = 0; e < sizes.size(); ++e) {
      const bool inside = given[e] < given[d] || (given[e] == given[d] && e > d);
      if (inside) strides[d] *= std::max<int64_t>(sizes[e], 1);
    }
  }
  decision.ints.push_back({2, strides});
  decision.outputs[0].strides = given;
  return decision;
}

}  // namespace

void add_factory_rules(RuleTable& rules) {
  for (const char* name : {"zeros_like", "ones_like", "full_like", "empty_like"}) {
    const bool value = std::string(name) != "empty_like";
    rules[std::string("aten::") + name] = [value](const OpCall& call) { return like(call, value); };
  }
  for (const char* name : {"new_zeros", "new_ones", "new_full", "new_empty"}) {
    const bool value = std::string(name) != "new_empty";
    rules[std::string("aten::") + name] = [value](const OpCall& call) {
      return of_sizes(call, value);
    };
  }
  rules["aten::new_empty_strided"] = strided;
}

}  // namespace yoke::mesh
