// The rules of operators, one file per family. For each axis of the mesh, a rule lists the
// placements of operands with which the operator can run on local tensors, and the placements of
// its results (op_call.hpp). If that needs more than the operator itself, the rule adds a kernel.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <unordered_map>

#include "sdk/mesh/dtensor/op_call.hpp"

namespace yoke::mesh {

using RuleTable = std::unordered_map<std::string, OpRule>;  // key: "aten::sum.dim_IntList"

// Each function adds the rules of one family.
void add_pointwise_rules(RuleTable& rules);
void add_factory_rules(RuleTable& rules);
void add_view_rules(RuleTable& rules);
void add_slice_rules(RuleTable& rules);
void add_matmul_rules(RuleTable& rules);
void add_embedding_rules(RuleTable& rules);
void add_norm_rules(RuleTable& rules);
void add_softmax_rules(RuleTable& rules);
void add_reduction_rules(RuleTable& rules);
void add_indexing_rules(RuleTable& rules);
void add_foreach_rules(RuleTable& rules);

// Returns the sizes of the result of broadcasting all operands.
Sizes broadcast_sizes(const OpCall& call);

// Returns true if a product with these placements is a sum over an axis with several pieces.
bool is_sum_in_pieces(const Mesh& mesh, const Placements& placements);

// Returns the Ways of a pointwise operator with broadcasting: all operands are cut along the same
// dim of the result. linear: if all operands are Partial, they may stay Partial.
Ways pointwise_ways(const OpCall& call, int axis, const Sizes& out, bool linear);

// Global sizes and strides of a result, as LibTorch's own code reads them.
struct Shape {
  Sizes sizes, strides;
};
// Returns the decision for an operator whose results have the elements of operand 0, or some of
// them, arranged in other dims. `where` maps a cut of the operand to the cut of the results; if it
// returns nullopt, the operand is gathered.
Decision follow(const OpCall& call,
                const std::vector<Shape>& outputs,
                const std::function<std::optional<Placement>(const Placement&)>& where);

}  // namespace yoke::mesh
