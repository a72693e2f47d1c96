// How a placement is chosen: a rule lists the ways that are correct along one axis, and choose()
// takes the cheapest for that axis. Axes are independent of each other, so a rule never handles
// combinations, and n axes cost n searches instead of a product of them. The cost of a way is the
// communication that it needs, so rules need not say when to gather: the placements of the operands
// decide it.
#include "sdk/mesh/dtensor/op_call.hpp"

#include <limits>
#include <numeric>

#include "sdk/mesh/dtensor/redistribute.hpp"
#include "yoke/error.hpp"

namespace yoke::mesh {
namespace {

std::string sizes_text(const Sizes& sizes) {
  std::string text = "[";
  for (size_t i = 0; i < sizes.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(sizes[i]);
  return text + "]";
}

// Returns the cost of moving an operand; infinite if it may not be moved there.
double cost_of(const Operand& operand, const Placement& from, const Placement& to) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  if (from == to) return 0;
  // A parameter or plain tensor that is written must be changed where it is, not in a copy.
  if (operand.written && (operand.parameter || operand.plain)) return kNever;
  // A rank slices its copy of a replicated parameter without any communication.
  if (operand.parameter && !(from.is_replicate() && to.is_shard())) return kNever;
  return redistribute_cost(from, to, operand.numel());
}

}  // namespace

int64_t Operand::numel() const {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

int64_t OpCall::list_size(size_t arg) const {
  return args[arg].isNone() ? 0 : static_cast<int64_t>(args[arg].toListRef().size());
}

int64_t OpCall::dim(size_t arg, int64_t ndim) const {
  const int64_t d = integer(arg);
  return d < 0 ? d + ndim : d;
}

Sizes OpCall::ints(size_t arg) const {
  if (args[arg].isNone()) return {};
  if (args[arg].isInt()) return {args[arg].toInt()};
  return args[arg].toIntVector();
}

bool OpCall::is_even(const Operand& operand, int64_t dim) const {
  // Several axes may cut the same dim, one inside the other: their parts multiply.
  int64_t parts = 1;
  for (int a = 0; a < mesh.ndim(); ++a) {
    const Placement& p = operand.placements[a];
    if (p.is_shard(dim)) parts *= int64_t{mesh.size(a)} * p.blocks;
  }
  return operand.sizes[dim] % parts == 0;
}

std::string describe_operands(const OpCall& call) {
  std::string text;
  for (const Operand& o : call.operands) {
    text += (text.empty() ? "" : ", ") +
            (o.plain ? "plain" : to_string(o.placements, call.mesh.ndim())) + " of " +
            sizes_text(o.sizes);
  }
  return text;
}

void OpCall::refuse(const std::string& why) const {
  throw Error(YOKE_INVALID_ARGUMENT,
              "operator " + name + " on distributed tensors: " + why +
                  "; its tensors: " + describe_operands(*this));
}

Decision choose(const OpCall& call,
                const std::function<Ways(int axis)>& ways,
                std::vector<Sizes> output_sizes) {
  Decision decision;
  decision.inputs.resize(call.operands.size());
  for (Sizes& sizes : output_sizes) decision.outputs.push_back({{}, std::move(sizes), {}});
  for (int axis = 0; axis < call.mesh.ndim(); ++axis) {
    const Ways candidates = ways(axis);
    // The first of equals wins, so rules list the ways that they prefer first.
    const Way* best = nullptr;
    double least = std::numeric_limits<double>::infinity();
    for (const Way& way : candidates) {
      // The cost is computed from global sizes even if other axes cut the operand. Local sizes can
      // differ between ranks, and ranks that decide differently would issue different collectives.
      double cost = way.extra;
      for (size_t i = 0; i < way.in.size(); ++i)
        cost += cost_of(call.operands[i], call.operands[i].placements[axis], way.in[i]);
      if (cost < least) least = cost, best = &way;
    }
    // A way that may not be taken has an infinite cost, which is never less than `least`.
    if (best == nullptr) {
      call.refuse("no way to compute it along " + call.mesh.axis(axis).name +
                  " without moving a parameter");
    }
    for (size_t i = 0; i < best->in.size(); ++i) decision.inputs[i][axis] = best->in[i];
    for (size_t i = 0; i < best->out.size(); ++i)
      decision.outputs[i].placements[axis] = best->out[i];
  }
  return decision;
}

Way all_replicate(const OpCall& call, size_t outputs) {
  return {std::vector<Placement>(call.operands.size()), std::vector<Placement>(outputs)};
}

}  // namespace yoke::mesh
