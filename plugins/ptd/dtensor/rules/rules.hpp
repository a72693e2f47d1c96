// The rules, by operator; a file per family.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <unordered_map>

#include "plugins/ptd/dtensor/op_call.hpp"

namespace yoke::ptd {

using RuleTable = std::unordered_map<std::string, OpRule>;  // by "aten::sum.dim_IntList"

void add_pointwise_rules(RuleTable& rules);
void add_factory_rules(RuleTable& rules);
void add_view_rules(RuleTable& rules);
void add_slice_rules(RuleTable& rules);
void add_matmul_rules(RuleTable& rules);
void add_embedding_rules(RuleTable& rules);
void add_norm_rules(RuleTable& rules);
void add_softmax_rules(RuleTable& rules);
void add_attention_rules(RuleTable& rules);
void add_reduction_rules(RuleTable& rules);
void add_indexing_rules(RuleTable& rules);
void add_foreach_rules(RuleTable& rules);

// Sizes of the result of broadcasting all operands.
Sizes broadcast_sizes(const OpCall& call);

// Pointwise over all operands, which are broadcast: along each axis all cut along the same dim of
// the result. linear: Partial stays Partial where all operands are.
Ways pointwise_ways(const OpCall& call, int axis, const Sizes& out, bool linear);

// Of a result, as LibTorch's own code sees the whole.
struct Shape {
  Sizes sizes, strides;
};
// Operand 0 seen or taken apart in other dims: a cut goes where `where` says, nowhere = the operand
// is gathered.
Decision follow(const OpCall& call,
                const std::vector<Shape>& outputs,
                const std::function<std::optional<Placement>(const Placement&)>& where);

}  // namespace yoke::ptd
