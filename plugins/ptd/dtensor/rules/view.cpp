// Operators that show the same elements in other dims, and those that take some of them.
#include <ATen/ATen.h>
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "plugins/ptd/dtensor/rules/rules.hpp"

namespace yoke::ptd {
namespace {

// Of a result.
struct Shape {
  Sizes sizes, strides;
};

// A cut must go along with the dims; what cannot is gathered.
Decision follow(const OpCall& call,
                const std::vector<Shape>& outputs,
                const std::function<std::optional<Placement>(const Placement&)>& where) {
  std::vector<Sizes> sizes;
  for (const Shape& shape : outputs) sizes.push_back(shape.sizes);
  Decision decision = choose(
      call,
      [&](int axis) -> Ways {
        const Placement& p = call.operands[0].placements[axis];
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

// ---- view: dims are merged and split, the order of the elements stays

int64_t product(const Sizes& sizes, size_t begin, size_t end) {
  return std::accumulate(
      sizes.begin() + begin, sizes.begin() + end, int64_t{1}, std::multiplies<>());
}

// The smallest group of dims around in[dim] that has as many elements as a group of out's dims:
// begins and ends in both.
struct Group {
  size_t in_begin, in_end, out_begin, out_end;
};

std::optional<Group> group_of(const Sizes& in, const Sizes& out, size_t dim) {
  size_t i = 0, j = 0;
  while (i < in.size() && j < out.size()) {
    Group g{i, i + 1, j, j + 1};
    int64_t a = in[i], b = out[j];
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

// Where a cut of in goes. The elements of the group are `rows` rows, each cut into the ranks'
// parts; the same must be so in the dims of out.
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
    if (rows % before != 0) return std::nullopt;
    const int64_t blocks = rows / before;
    if (out[j] % blocks != 0) continue;
    const int64_t m = out[j] / blocks, within = product(out, j + 1, g->out_end);
    if (m == 1 && n * inner != 1) continue;
    const bool same = m == n && within == inner;
    const bool even = m * within == n * inner && n % ranks == 0 && m % ranks == 0;
    if (same || even) return shard(static_cast<int64_t>(j), blocks);
    return std::nullopt;
  }
  return std::nullopt;
}

// A local tensor may lie so that no view of it has these sizes.
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

// A view where the whole would have one, else compact, as of a copy.
Sizes view_strides(const Operand& self, const Sizes& out) {
  const auto strides = at::detail::computeStride(self.sizes, self.strides, out);
  return strides.value_or(Sizes{});
}

// Axis by axis: an inner axis sees what the outer ones left of the dims.
Decision view_to(const OpCall& call, const Sizes& wanted) {
  const Operand& self = call.operands[0];
  const Sizes out = infer(wanted, self.numel());
  Decision decision;
  decision.inputs = {self.placements};
  Placements result;
  for (int a = 0; a < call.mesh.ndim(); ++a) {
    const Placement& p = self.placements[a];
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
      decision.inputs[0][a] = replicate();
    }
  }
  decision.outputs = {{result, out, view_strides(self, out)}};
  decision.ints = {{1, local_sizes(out, result, call.mesh.coordinates())}};
  decision.kernel = view_kernel;
  return decision;
}

Decision view(const OpCall& call) {
  return view_to(call, call.ints(1));
}

// Its strides are those of a tensor of the whole sizes.
Decision reshape_alias(const OpCall& call) {
  Decision decision = view_to(call, call.ints(1));
  decision.kernel = [](Mesh& mesh, torch::jit::Stack& stack) {
    torch::jit::drop(stack, 1);
    view_kernel(mesh, stack);
  };
  return decision;
}

// ---- dims change places

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

// ---- dims of size 1 come and go

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

// ---- some of the elements along a dim, which must not be cut

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
  if (count == n) {  // nothing is left out: the cut may stay, at any bounds
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

// Gradients of these: (grad, sizes of the input, dim, ...), zeros around grad.
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

// ---- several tensors along one dim

// All operands lie alike, and not cut along `dim` of the operands (-1: no dim of theirs).
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

Decision same(const OpCall& call) {
  const Operand& self = call.operands[0];
  return follow(
      call, {{self.sizes, self.strides}}, [](const Placement& p) { return std::optional(p); });
}

}  // namespace

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

}  // namespace yoke::ptd
