// The rules, by operator; a file per family.
#pragma once

#include <string>
#include <unordered_map>

#include "plugins/ptd/dtensor/op_call.hpp"

namespace yoke::ptd {

using RuleTable = std::unordered_map<std::string, Rule>;  // by "aten::sum.dim_IntList"

void add_pointwise_rules(RuleTable& rules);
void add_factory_rules(RuleTable& rules);
void add_view_rules(RuleTable& rules);
void add_matmul_rules(RuleTable& rules);
void add_embedding_rules(RuleTable& rules);
void add_norm_rules(RuleTable& rules);
void add_softmax_rules(RuleTable& rules);
void add_attention_rules(RuleTable& rules);
void add_reduction_rules(RuleTable& rules);
void add_indexing_rules(RuleTable& rules);
void add_foreach_rules(RuleTable& rules);

// The rule of an operator; nullptr = it has none.
const Rule* find_rule(const std::string& name);

// Sizes of the result of broadcasting the operands [begin, end).
Sizes broadcast_sizes(const OpCall& call, size_t begin, size_t end);

// Pointwise over the operands [begin, end), which are broadcast: along each axis all cut along the
// same dim of the result. linear: Partial stays Partial where all operands are.
Ways pointwise_ways(
    const OpCall& call, int axis, size_t begin, size_t end, const Sizes& out, bool linear);

}  // namespace yoke::ptd
