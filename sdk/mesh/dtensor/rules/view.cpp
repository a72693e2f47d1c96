// These rules cover operators that arrange the same elements in other dims. A cut is kept if the
// local parts, viewed in the new dims, are again equal parts of one dim, possibly of blocks of it;
// otherwise the operand is gathered. Blocks exist for views that flatten: [B, S] cut along S
// becomes [B * S] cut in B blocks. The view back to [B, S] restores the cut, so a flattened matrix
// product needs no communication.
#include <ATen/ATen.h>
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "sdk/mesh/dtensor/rules/rules.hpp"

namespace yoke::mesh {
namespace {

// ---- view: merges and splits dims, keeps the order of the elements ----

int64_t product(const Sizes& sizes, size_t begin, size_t end) {
  return std::accumulate(
      sizes.begin() + begin, sizes.begin() + end, int64_t{1}, std::multiplies<>());
}

// The smallest group of dims around in[dim] that has as many elements as a group of dims of out.
struct Group {
  size_t in_begin, in_end, out_begin, out_end;
};

// Walks both lists of dims in step. A group ends where the products of both lists are equal.
std::optional<Group> group_of(const Sizes& in, const Sizes& out, size_t dim) {
  size_t i = 0, j = 0;
  while (i < in.size() && j < out.size()) {
    Group g{i, i + 1, j, j + 1};
    int64_t a = in[i], b = out[j];
    // The smaller product takes one more dim. If that side has none left, there is no such group.
    while (a != b) {
      if (a < b && g.in_end < in.size()) {
        a *= in[g.in_end++];
      } else if (b < a && g.out_end < out.size()) {
        b *= out[g.out_end++];
      } else {
        return std::nullopt;
      }
    }
    if (dim >= g.in_begin && dim < g.in_end) return g;
    i = g.in_end;
    j = g.out_end;
  }
  return std::nullopt;
}

// Returns the placement in the dims `out` that is equivalent to the cut p of `in`. The cut divides
// the elements of its group into `rows` rows of n * inner elements, and each row along n. A dim of
// `out` can take the cut if it gives the same rows and the cuts fall between the same elements.
std::optional<Placement> through_view(const Sizes& in,
                                      const Sizes& out,
                                      const Placement& p,
                                      int ranks) {
  const auto g = group_of(in, out, p.dim);
  if (!g) return std::nullopt;
  const int64_t rows = product(in, g->in_begin, p.dim) * p.blocks;
  const int64_t n = in[p.dim] / p.blocks, inner = product(in, p.dim + 1, g->in_end);
  int64_t before = 1;
  for (size_t j = g->out_begin; j < g->out_end; before *= out[j], ++j) {
    // `before` is only ever multiplied, so no later value of it divides the rows either.
    if (rows % before != 0) return std::nullopt;
    const int64_t blocks = rows / before;
    if (out[j] % blocks != 0) continue;
    const int64_t m = out[j] / blocks, within = product(out, j + 1, g->out_end);
    // A dim with one element per row cannot be cut, but the dim after it has the same rows.
    if (m == 1 && n * inner != 1) continue;
    // Cuts fall between the same elements if the dims are equal, or if both divide evenly.
    const bool same = m == n && within == inner;
    const bool even = m * within == n * inner && n % ranks == 0 && m % ranks == 0;
    if (same || even) return shard(static_cast<int64_t>(j), blocks);
    return std::nullopt;
  }
  return std::nullopt;
}

// Reshapes instead of viewing: the local strides may not allow a view even if the global ones do.
void view_kernel(Mesh&, torch::jit::Stack& stack) {
  const Sizes sizes = stack[stack.size() - 1].toIntVector();
  const at::Tensor self = stack[stack.size() - 2].toTensor();
  torch::jit::drop(stack, 2);
  torch::jit::push(stack, self.reshape(sizes));
}

Sizes infer(const Sizes& wanted, int64_t numel) {
  const auto sizes = at::infer_size_dv(wanted, numel);
  return {sizes.begin(), sizes.end()};
}

// Returns the global strides of the view; empty (contiguous) if only a copy is possible.
Sizes view_strides(const Operand& self, const Sizes& out) {
  const auto strides = at::detail::computeStride(self.sizes, self.strides, out);
  return strides.value_or(Sizes{});
}

// Maps the cuts axis by axis: an inner axis cuts what the outer axes left of the dims.
Decision view_to(const OpCall& call, const Sizes& wanted) {
  const Operand& self = call.operands[0];
  const Sizes out = infer(wanted, self.numel());
  Decision decision;
  decision.inputs = {self.placements};
  Placements result;
  for (int a = 0; a < call.mesh.ndim(); ++a) {
    const Placement& p = self.placements[a];
    // A view computes nothing, so Replicate and Partial stay as they are.
    if (!p.is_shard()) {
      result[a] = p;
      continue;
    }
    const Coordinates& at = call.mesh.coordinates();
    const auto there = through_view(local_sizes(self.sizes, decision.inputs[0], at, a),
                                    local_sizes(out, result, at, a),
                                    p,
                                    call.mesh.size(a));
    if (there) {
      result[a] = *there;
    } else {
      // Only this axis is gathered; cuts along the others remain.
      decision.inputs[0][a] = replicate();
    }
  }
  decision.outputs = {{result, out, view_strides(self, out)}};
  // The sizes that the caller passed are global; the local call gets the sizes of this rank's part.
  decision.ints = {{1, local_sizes(out, result, call.mesh.coordinates())}};
  decision.kernel = view_kernel;
  return decision;
}

Decision view(const OpCall& call) {
  return view_to(call, call.ints(1));
}

// The given strides are global; the local tensor is reshaped without them.
Decision reshape_alias(const OpCall& call) {
  Decision decision = view_to(call, call.ints(1));
  decision.kernel = [](Mesh& mesh, torch::jit::Stack& stack) {
    torch::jit::drop(stack, 1);
    view_kernel(mesh, stack);
  };
  return decision;
}

// ---- permutations of dims ----

Sizes permuted(const Sizes& sizes, const Sizes& order) {
  Sizes out;
  for (const int64_t d : order) out.push_back(sizes[d]);
  return out;
}

Decision permute_to(const OpCall& call, const Sizes& order) {
  const Operand& self = call.operands[0];
  const Shape out{permuted(self.sizes, order), permuted(self.strides, order)};
  return follow(call, {out}, [&](const Placement& p) {
    const auto at = std::find(order.begin(), order.end(), p.dim) - order.begin();
    return std::optional(shard(at, p.blocks));
  });
}

Sizes identity(int64_t ndim) {
  Sizes order(ndim);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

Decision transpose(const OpCall& call) {
  const int64_t ndim = call.operands[0].ndim();
  Sizes order = identity(ndim);
  std::swap(order[call.dim(1, ndim)], order[call.dim(2, ndim)]);
  return permute_to(call, order);
}

Decision t(const OpCall& call) {
  Sizes order = identity(call.operands[0].ndim());
  std::reverse(order.begin(), order.end());
  return permute_to(call, order);
}

Decision permute(const OpCall& call) {
  Sizes order = call.ints(1);
  for (int64_t& d : order) d += d < 0 ? call.operands[0].ndim() : 0;
  return permute_to(call, order);
}

// ---- dims of size 1 are added and removed ----

Decision unsqueeze(const OpCall& call) {
  const Operand& self = call.operands[0];
  const int64_t at = call.dim(1, self.ndim() + 1);
  Shape out{self.sizes, self.strides};
  out.sizes.insert(out.sizes.begin() + at, 1);
  out.strides.insert(out.strides.begin() + at,
                     at < self.ndim() ? self.sizes[at] * self.strides[at] : 1);
  return follow(call, {out}, [&](const Placement& p) {
    return std::optional(shard(p.dim + (p.dim >= at ? 1 : 0), p.blocks));
  });
}

Decision squeeze_dims(const OpCall& call, std::vector<bool> gone) {
  const Operand& self = call.operands[0];
  Shape out;
  for (size_t d = 0; d < self.sizes.size(); ++d) {
    gone[d] = gone[d] && self.sizes[d] == 1;
    if (gone[d]) continue;
    out.sizes.push_back(self.sizes[d]);
    out.strides.push_back(self.strides[d]);
  }
  return follow(call, {out}, [&](const Placement& p) -> std::optional<Placement> {
    // A dim of size 1 that is cut has its element on one rank only. Without the dim, no placement
    // can express that.
    if (gone[p.dim]) return std::nullopt;
    return shard(p.dim - std::count(gone.begin(), gone.begin() + p.dim, true), p.blocks);
  });
}

Decision squeeze(const OpCall& call) {
  const int64_t ndim = call.operands[0].ndim();
  std::vector<bool> gone(ndim, call.args.size() == 1);
  if (call.args.size() > 1) {
    for (const int64_t d : call.ints(1)) gone[d < 0 ? d + ndim : d] = true;
  }
  return squeeze_dims(call, gone);
}

// Missing dims are added in front, as in broadcasting. A dim that grows has size 1 before and
// stride 0 afterwards, and a cut of it cannot survive: every rank needs its one element.
Decision expand(const OpCall& call) {
  const Operand& self = call.operands[0];
  Sizes out = call.ints(1);
  const int64_t shift = static_cast<int64_t>(out.size()) - self.ndim();
  Sizes strides(out.size(), 0);
  for (int64_t d = 0; d < self.ndim(); ++d) {
    if (out[shift + d] == -1) out[shift + d] = self.sizes[d];
    if (out[shift + d] == self.sizes[d]) strides[shift + d] = self.strides[d];
  }
  Decision decision =
      follow(call, {{out, strides}}, [&](const Placement& p) -> std::optional<Placement> {
        if (self.sizes[p.dim] != out[shift + p.dim]) return std::nullopt;
        return shard(shift + p.dim, p.blocks);
      });
  decision.ints = {{1, local_sizes(out, decision.outputs[0].placements, call.mesh.coordinates())}};
  return decision;
}

Decision same(const OpCall& call) {
  const Operand& self = call.operands[0];
  return follow(
      call, {{self.sizes, self.strides}}, [](const Placement& p) { return std::optional(p); });
}

}  // namespace

Decision follow(const OpCall& call,
                const std::vector<Shape>& outputs,
                const std::function<std::optional<Placement>(const Placement&)>& where) {
  std::vector<Sizes> sizes;
  for (const Shape& shape : outputs) sizes.push_back(shape.sizes);
  Decision decision = choose(
      call,
      [&](int axis) -> Ways {
        const Placement& p = call.operands[0].placements[axis];
        // There is one way: keep the placement, or gather. Partial values need no gathering, since
        // rearranging elements commutes with a reduction.
        Way way = all_replicate(call, outputs.size());
        const std::optional<Placement> out = p.is_shard() ? where(p) : std::optional(p);
        if (!out) return {way};
        way.in[0] = p;
        way.out.assign(outputs.size(), *out);
        return {way};
      },
      sizes);
  for (size_t i = 0; i < outputs.size(); ++i) decision.outputs[i].strides = outputs[i].strides;
  return decision;
}

void add_view_rules(RuleTable& rules) {
  rules["aten::view"] = view;
  rules["aten::_unsafe_view"] = view;
  rules["aten::_reshape_alias"] = reshape_alias;
  rules["aten::alias"] = same;
  rules["aten::detach"] = same;
  rules["aten::t"] = t;
  rules["aten::transpose.int"] = transpose;
  rules["aten::permute"] = permute;
  rules["aten::unsqueeze"] = unsqueeze;
  rules["aten::squeeze"] = squeeze;
  rules["aten::squeeze.dim"] = squeeze;
  rules["aten::squeeze.dims"] = squeeze;
  rules["aten::expand"] = expand;
}

}  // namespace yoke::mesh
