// What a rule sees of an operator, and how it answers.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <string>
#include <vector>

#include "plugins/ptd/dtensor/mesh.hpp"

namespace yoke::ptd {

// A tensor among the arguments. One that is no DTensor is the same on every rank: Replicate.
struct Operand {
  Sizes sizes, strides;  // of the whole
  Placements placements;
  bool parameter = false;  // never moved
  bool plain = false;      // no DTensor
  bool written = false;    // by the operator
  bool integral = false;   // of an integer or boolean type

  int64_t ndim() const { return static_cast<int64_t>(sizes.size()); }
  int64_t numel() const;
};

struct OpCall {
  const std::string& name;  // "aten::sum.dim_IntList"
  const c10::FunctionSchema& schema;
  c10::ArrayRef<c10::IValue> args;
  Mesh& mesh;
  std::vector<Operand> operands;  // the tensors of args, those of lists one by one
  std::vector<int> first;         // by argument: its (first) operand; -1 = no tensor there

  // The operand that is argument `arg`.
  const Operand& tensor(size_t arg) const { return operands[first[arg]]; }
  bool has_tensor(size_t arg) const { return first[arg] >= 0; }
  int64_t list_size(size_t arg) const;
  // Arguments of other types. A dim is wrapped into [0, ndim).
  int64_t integer(size_t arg) const { return args[arg].toInt(); }
  int64_t dim(size_t arg, int64_t ndim) const;
  Sizes ints(size_t arg) const;
  bool boolean(size_t arg) const { return args[arg].toBool(); }

  // Whether all ranks have equally much of a dim of an operand, over all axes that cut it.
  bool is_even(const Operand& operand, int64_t dim) const;

  // INVALID_ARGUMENT: "operator aten::... : <why>; its tensors: ...".
  [[noreturn]] void refuse(const std::string& why) const;
};

// "S(1) of [2, 8], R of [8]" of the operands.
std::string describe_operands(const OpCall& call);

// One way to compute an operator along one axis of the mesh: placements of all operands before and
// of all results after.
struct Way {
  std::vector<Placement> in, out;
  double extra = 0;  // cost beside that of bringing the operands there
};
using Ways = std::vector<Way>;

// For each axis the cheapest of the ways that are possible there, the first of equals. An operand
// that is written keeps its place if it is a parameter or plain. INVALID_ARGUMENT if nothing is
// possible.
Decision choose(const OpCall& call,
                const std::function<Ways(int axis)>& ways,
                std::vector<Sizes> output_sizes);

// All operands and results Replicate.
Way all_replicate(const OpCall& call, size_t outputs);

// A rule: pure, called once for each key.
using OpRule = std::function<Decision(const OpCall&)>;

// The rule of an operator ("aten::sum.dim_IntList"); nullptr = it has none. Defined with the rules
// (rules/rules.cpp), which the dispatcher knows only by this function.
const OpRule* find_rule(const std::string& name);

}  // namespace yoke::ptd
