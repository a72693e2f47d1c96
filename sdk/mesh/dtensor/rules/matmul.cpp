// These rules cover matrix products. Along an axis a product can be cut by rows, by columns or by
// batch, which needs no communication, or along the dim that is summed over, which makes the result
// Partial. Tensor parallelism needs nothing else: a column-parallel product and then a row-parallel
// one follow from how the two weights are cut.
#include <ATen/ATen.h>

#include "sdk/mesh/dtensor/rules/rules.hpp"

namespace yoke::mesh {
namespace {

// Returns the placements under which out[.., m, n] = a[.., m, k] b[.., k, n] can be computed
// locally. batch: number of leading dims, 0 or 1.
Ways product_ways(const Placement& a, const Placement& b, int64_t batch) {
  const int64_t rows = batch, columns = batch + 1;
  Ways ways;
  if (a.is_shard(rows)) ways.push_back({{a, replicate()}, {a}});
  if (b.is_shard(columns)) ways.push_back({{replicate(), b}, {b}});
  if (a.is_shard(columns)) ways.push_back({{a, shard(rows, a.blocks)}, {partial()}});
  if (b.is_shard(rows)) ways.push_back({{shard(columns, b.blocks), b}, {partial()}});
  if (batch == 1) {
    for (const Placement& p : {a, b}) {
      if (p.is_shard(0)) ways.push_back({{p, p}, {p}});
    }
  }
  if (a.is_partial() && a.reduce != Reduce::kMax) ways.push_back({{a, replicate()}, {a}});
  if (b.is_partial() && b.reduce != Reduce::kMax) ways.push_back({{replicate(), b}, {b}});
  ways.push_back({{replicate(), replicate()}, {replicate()}});
  return ways;
}

Decision product(const OpCall& call, size_t a, size_t b, int64_t batch) {
  const Operand &x = call.tensor(a), &y = call.tensor(b);
  Sizes out = x.sizes;
  out.back() = y.sizes.back();
  return choose(
      call,
      [&](int axis) { return product_ways(x.placements[axis], y.placements[axis], batch); },
      {out});
}

// Whoever reads a sum over an axis with several pieces decides how it is cut between the ranks, and
// computes it.
Decision mm(const OpCall& call) {
  Decision decision = product(call, 0, 1, 0);
  if (is_sum_in_pieces(call.mesh, decision.outputs[0].placements)) {
    decision.kernel = [](Mesh& mesh, torch::jit::Stack& stack) {
      const auto args = torch::jit::pop(stack, 2);
      torch::jit::push(stack, mesh.pending().add({{args[0].toTensor(), args[1].toTensor()}}));
    };
  }
  return decision;
}
Decision bmm(const OpCall& call) {
  return product(call, 0, 1, 1);
}

// Computes addmm(bias, x, y, beta, alpha) with a result that is Partial along `axes`: only the
// first rank of each axis adds the bias.
void addmm_of_parts(const std::vector<int>& axes, Mesh& mesh, torch::jit::Stack& stack) {
  auto args = torch::jit::pop(stack, 5);
  at::Scalar beta = args[3].toScalar();
  for (const int axis : axes) {
    if (mesh.rank(axis) != 0) beta = 0;
  }
  torch::jit::push(
      stack,
      at::addmm(
          args[0].toTensor(), args[1].toTensor(), args[2].toTensor(), beta, args[4].toScalar()));
}

// The bias must have the placement of the product. If the product is Partial and the bias is not, a
// kernel adds the bias on one rank only.
Decision addmm(const OpCall& call) {
  const Operand &bias = call.tensor(0), &x = call.tensor(1), &y = call.tensor(2);
  const Sizes out{x.sizes[0], y.sizes[1]};
  Decision decision = choose(
      call,
      [&](int axis) {
        Ways ways = product_ways(x.placements[axis], y.placements[axis], 0);
        for (Way& way : ways) {
          Placement p = way.out[0];
          if (p.is_shard()) {
            const int64_t dim = p.dim - (2 - bias.ndim());
            p = dim >= 0 && bias.sizes[dim] == out[p.dim] ? shard(dim, p.blocks) : replicate();
          }
          if (p == partial() && !bias.placements[axis].is_partial()) p = replicate();
          way.in.insert(way.in.begin(), p);
        }
        return ways;
      },
      {out});
  std::vector<int> axes;
  for (int a = 0; a < call.mesh.ndim(); ++a) {
    if (decision.outputs[0].placements[a] == partial() && decision.inputs[0][a].is_replicate())
      axes.push_back(a);
  }
  if (!axes.empty()) {
    decision.kernel = [axes](Mesh& mesh, torch::jit::Stack& stack) {
      addmm_of_parts(axes, mesh, stack);
    };
  }
  return decision;
}

}  // namespace

bool is_sum_in_pieces(const Mesh& mesh, const Placements& placements) {
  bool found = false;
  for (int a = 0; a < mesh.ndim(); ++a)
    found = found || (mesh.axis(a).pieces > 1 && placements[a] == partial());
  return found;
}

void add_matmul_rules(RuleTable& rules) {
  rules["aten::mm"] = mm;
  rules["aten::bmm"] = bmm;
  rules["aten::addmm"] = addmm;
}

}  // namespace yoke::mesh
