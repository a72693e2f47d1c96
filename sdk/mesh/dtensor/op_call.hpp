// The interface of operator rules. A rule gets an OpCall: one call of an operator, with the
// placements of its operands. It returns a Decision (op_cache.hpp). Rules are pure; they read sizes
// and placements, never values.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <string>
#include <vector>

#include "sdk/mesh/dtensor/mesh.hpp"

namespace yoke::mesh {

// A tensor among the arguments. A plain tensor is assumed to be the same on every rank, so its
// placements are Replicate.
struct Operand {
  Sizes sizes, strides;  // global sizes and strides
  Placements placements;
  bool parameter = false;  // a parameter: never redistributed, at most sliced
  bool plain = false;      // not a DTensor
  bool written = false;    // the operator writes to it
  bool integral = false;   // its type is an integer or boolean

  int64_t ndim() const { return static_cast<int64_t>(sizes.size()); }
  int64_t numel() const;
};

struct OpCall {
  const std::string& name;  // "aten::sum.dim_IntList"
  const c10::FunctionSchema& schema;
  c10::ArrayRef<c10::IValue> args;
  Mesh& mesh;
  std::vector<Operand> operands;  // all tensors of args, including those inside lists
  std::vector<int> first;         // index of the first operand of each argument; -1 = no tensor

  // Returns the operand that is argument `arg`.
  const Operand& tensor(size_t arg) const { return operands[first[arg]]; }
  bool has_tensor(size_t arg) const { return first[arg] >= 0; }
  int64_t list_size(size_t arg) const;
  // Return arguments that are not tensors. dim() wraps a negative dim into [0, ndim). ints()
  // returns an empty list for None and one element for a number.
  int64_t integer(size_t arg) const { return args[arg].toInt(); }
  int64_t dim(size_t arg, int64_t ndim) const;
  Sizes ints(size_t arg) const;
  bool boolean(size_t arg) const { return args[arg].toBool(); }

  // Returns true if all ranks have equal parts of a dim of an operand, over all axes that cut it.
  bool is_even(const Operand& operand, int64_t dim) const;

  // Throws Error(INVALID_ARGUMENT), which names the operator, its tensors and the reason.
  [[noreturn]] void refuse(const std::string& why) const;
};

// Returns "S(1) of [2, 8], R of [8]" for the operands.
std::string describe_operands(const OpCall& call);

// A Way is one valid combination of placements along one axis of the mesh: if the operands have the
// placements `in`, computing the operator on local tensors gives results with the placements `out`.
struct Way {
  std::vector<Placement> in, out;
  double extra = 0;  // cost in addition to that of redistributing the operands
};
using Ways = std::vector<Way>;

// Chooses the cheapest possible Way for each axis, and the first one among equals. Parameters are
// never redistributed, except that a replicated one may be sliced. An operand that is written keeps
// its placement if it is a parameter or plain. Throws Error(INVALID_ARGUMENT) if an axis has no
// possible Way.
Decision choose(const OpCall& call,
                const std::function<Ways(int axis)>& ways,
                std::vector<Sizes> output_sizes);

// Returns the Way with all operands and results Replicate, which is correct for every operator.
Way all_replicate(const OpCall& call, size_t outputs);

// The rule of an operator is a pure function, called once for each key of the cache.
using OpRule = std::function<Decision(const OpCall&)>;

// Returns the rule of an operator, such as "aten::sum.dim_IntList", or nullptr. It is defined in
// rules/rules.cpp; the dispatcher uses the rules only through this function.
const OpRule* find_rule(const std::string& name);

}  // namespace yoke::mesh
