// These rules cover operators that take some of the elements along a dim, or join tensors along
// one. That dim must not be cut: which rank has which elements would then depend on the bounds.
// Other dims may stay cut.
#include <ATen/ATen.h>

#include <algorithm>

#include "sdk/mesh/dtensor/rules/rules.hpp"

namespace yoke::mesh {
namespace {

// Returns the decision for taking elements along `dim`. removed: true if the results lack that dim.
Decision along(const OpCall& call,
               int64_t dim,
               const std::vector<Shape>& outputs,
               bool removed = false) {
  return follow(call, outputs, [&](const Placement& p) -> std::optional<Placement> {
    if (p.dim == dim) return std::nullopt;
    return shard(p.dim - (removed && p.dim > dim ? 1 : 0), p.blocks);
  });
}

Sizes with_dim(Sizes sizes, int64_t dim, int64_t n) {
  sizes[dim] = n;
  return sizes;
}
Shape without_dim(const Operand& self, int64_t dim) {
  Shape shape{self.sizes, self.strides};
  shape.sizes.erase(shape.sizes.begin() + dim);
  shape.strides.erase(shape.strides.begin() + dim);
  return shape;
}

Decision slice(const OpCall& call) {
  const Operand& self = call.operands[0];
  const int64_t dim = call.dim(1, self.ndim()), n = self.sizes[dim];
  const auto bound = [&](size_t arg, int64_t otherwise) {
    if (call.args[arg].isNone()) return otherwise;
    const int64_t at = call.integer(arg);
    return std::clamp<int64_t>(at < 0 ? at + n : at, 0, n);
  };
  const int64_t begin = bound(2, 0), end = std::max(begin, bound(3, n)), step = call.integer(4);
  const int64_t count = (end - begin + step - 1) / step;
  // The slice has all elements, so the dim may stay cut. The kernel ignores the bounds, which are
  // global.
  if (count == n) {
    Decision decision = follow(
        call, {{self.sizes, self.strides}}, [](const Placement& p) { return std::optional(p); });
    decision.kernel = [](Mesh&, torch::jit::Stack& stack) {
      const at::Tensor local = stack[stack.size() - 5].toTensor();
      torch::jit::drop(stack, 5);
      torch::jit::push(stack, local.alias());
    };
    return decision;
  }
  const Sizes strides = with_dim(self.strides, dim, self.strides[dim] * step);
  return along(call, dim, {{with_dim(self.sizes, dim, count), strides}});
}

Decision select(const OpCall& call) {
  const Operand& self = call.operands[0];
  const int64_t dim = call.dim(1, self.ndim());
  return along(call, dim, {without_dim(self, dim)}, true);
}

Decision unbind(const OpCall& call) {
  const Operand& self = call.operands[0];
  const int64_t dim = call.dim(1, self.ndim());
  return along(call, dim, std::vector<Shape>(self.sizes[dim], without_dim(self, dim)), true);
}

Decision split(const OpCall& call) {
  const Operand& self = call.operands[0];
  const int64_t dim = call.dim(2, self.ndim());
  std::vector<Shape> outputs;
  const auto add = [&](int64_t n) {
    outputs.push_back({with_dim(self.sizes, dim, n), self.strides});
  };
  if (call.args[1].isInt()) {
    const int64_t size = call.integer(1), n = self.sizes[dim];
    for (int64_t at = 0; at < n || outputs.empty(); at += size) add(std::min(size, n - at));
  } else {
    for (const int64_t size : call.ints(1)) add(size);
  }
  return along(call, dim, outputs);
}

// Returns the decision for slice_backward(grad, sizes of the input, dim, ...), which surrounds grad
// with zeros.
Decision slice_backward(const OpCall& call) {
  const Sizes sizes = call.ints(1);
  const int64_t dim = call.dim(2, static_cast<int64_t>(sizes.size()));
  Decision decision = along(call, dim, {{sizes, {}}});
  decision.ints = {
      {1, local_sizes(sizes, decision.outputs[0].placements, call.mesh.coordinates())}};
  return decision;
}

Decision select_backward(const OpCall& call) {
  const Sizes sizes = call.ints(1);
  const int64_t dim = call.dim(2, static_cast<int64_t>(sizes.size()));
  Decision decision = follow(call, {{sizes, {}}}, [&](const Placement& p) {
    return std::optional(shard(p.dim + (p.dim >= dim ? 1 : 0), p.blocks));
  });
  decision.ints = {
      {1, local_sizes(sizes, decision.outputs[0].placements, call.mesh.coordinates())}};
  return decision;
}

// ---- several tensors along one dim ----

// Returns the decision for cat and stack. All operands get the same placement, which must not cut
// `dim`; -1 = a new dim. A cut of a dim >= shift_from becomes a cut of the next dim in the result.
Decision together(const OpCall& call, int64_t dim, const Sizes& out, int64_t shift_from) {
  return choose(call,
                [&](int axis) {
                  Ways ways;
                  for (const Operand& o : call.operands) {
                    const Placement& p = o.placements[axis];
                    const bool usable = (p.is_shard() && p.dim != dim) ||
                                        (p.is_partial() && p.reduce != Reduce::kMax);
                    if (!usable) continue;
                    Placement result = p;
                    if (p.is_shard() && p.dim >= shift_from) ++result.dim;
                    ways.push_back({std::vector<Placement>(call.operands.size(), p), {result}});
                  }
                  ways.push_back(all_replicate(call, 1));
                  return ways;
                },
                {out});
}

Decision cat(const OpCall& call) {
  const Operand& front = call.operands[0];
  const int64_t dim = call.dim(1, front.ndim());
  int64_t n = 0;
  for (const Operand& o : call.operands) {
    if (o.ndim() != front.ndim()) call.refuse("tensors of different numbers of dims");
    n += o.sizes[dim];
  }
  return together(call, dim, with_dim(front.sizes, dim, n), INT64_MAX);
}

Decision stack_rule(const OpCall& call) {
  const Operand& front = call.operands[0];
  const int64_t dim = call.dim(1, front.ndim() + 1);
  Sizes out = front.sizes;
  out.insert(out.begin() + dim, static_cast<int64_t>(call.operands.size()));
  return together(call, -1, out, dim);
}

}  // namespace

void add_slice_rules(RuleTable& rules) {
  rules["aten::slice.Tensor"] = slice;
  rules["aten::select.int"] = select;
  rules["aten::unbind.int"] = unbind;
  rules["aten::split.Tensor"] = split;
  rules["aten::split_with_sizes"] = split;
  rules["aten::slice_backward"] = slice_backward;
  rules["aten::select_backward"] = select_backward;
  rules["aten::cat"] = cat;
  rules["aten::stack"] = stack_rule;
}

}  // namespace yoke::mesh
