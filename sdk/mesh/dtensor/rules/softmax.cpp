// These rules cover softmax and the cross-entropy loss. If the vocabulary is cut between ranks,
// log-softmax all-reduces two numbers per row, its backward all-reduces one number, and the loss
// takes each target from the rank that has its column. Gathering the logits instead would transfer
// and store the largest activation of a model.
#include <ATen/ATen.h>

#include "sdk/mesh/dtensor/redistribute.hpp"
#include "sdk/mesh/dtensor/rules/rules.hpp"
#include "sdk/mesh/dtensor/rules/targets.hpp"
#include "yoke/error.hpp"

namespace yoke::mesh {
namespace {

// Returns the first axis that cuts `dim`, or -1.
int cutting_axis(const OpCall& call, const Placements& p, int64_t dim) {
  for (int a = 0; a < call.mesh.ndim(); ++a) {
    if (p[a].is_shard(dim)) return a;
  }
  return -1;
}

// Returns the Ways in which all operands are cut alike. Cuts along `dim` are included only if
// keep_cut.
Ways row_ways(const OpCall& call, int axis, int64_t dim, bool keep_cut) {
  Ways ways;
  for (const Operand& o : call.operands) {
    const Placement& p = o.placements[axis];
    if (p.is_shard() && (p.dim != dim || keep_cut))
      ways.push_back({std::vector<Placement>(call.operands.size(), p), {p}});
  }
  ways.push_back(all_replicate(call, 1));
  return ways;
}

// Returns true if the rows may stay cut along `dim` on this axis. Only one axis may cut a
// vocabulary.
bool may_stay_cut(const OpCall& call, const Operand& rows, int axis, int64_t dim) {
  return call.mesh.axis(axis).loss_parallel && cutting_axis(call, rows.placements, dim) == axis;
}

// Computes x - log(sum(exp(x))), with the sum over all ranks: LibTorch's kernel uses the sum of
// this rank, so its result is moved by the difference of the logarithms. The logits are often the
// largest tensor of a step, and other compositions read and write tensors of their size more often.
//
// The logarithm of this rank's sum follows from any column of the result, and most precisely from
// the largest one. Where all columns are -inf, the sum is 0.
Kernel log_softmax_kernel(int axis, int64_t dim) {
  return [axis, dim](Mesh& mesh, torch::jit::Stack& stack) {
    auto args = torch::jit::pop(stack, 3);
    const at::Tensor x = args[2].toBool() ? args[0].toTensor().to(at::kFloat) : args[0].toTensor();
    const at::Tensor out = at::_log_softmax(x, dim, false);
    at::Tensor own = at::full_like(x.sum(dim, true), -INFINITY);
    if (x.size(dim) > 0) {
      const auto [largest, column] = x.max(dim, true);
      const at::Tensor masked = largest.eq(-INFINITY);
      own = at::where(masked, own, largest - out.gather(dim, column));
      if (!x.is_cpu() || masked.any().item<bool>()) out.masked_fill_(masked, -INFINITY);
    }
    const at::Tensor most = own.clone();
    all_reduce(mesh, axis, most, Reduce::kMax);
    const at::Tensor sum = (own - most).exp_();
    all_reduce(mesh, axis, sum, Reduce::kSum);
    const at::Tensor all = most + sum.log();
    // Where this rank has no share of the sum, out is -inf and stays so.
    torch::jit::push(stack, out.add_((own - all).masked_fill_(own.eq(-INFINITY), 0)));
  };
}

// (self, dim, half_to_float)
Decision log_softmax(const OpCall& call) {
  const Operand& x = call.operands[0];
  const int64_t dim = call.dim(1, x.ndim());
  Decision decision =
      choose(call,
             [&](int axis) {
               return row_ways(call, axis, dim, may_stay_cut(call, call.operands[0], axis, dim));
             },
             {x.sizes});
  const int axis = cutting_axis(call, decision.inputs[0], dim);
  if (axis >= 0) decision.kernel = log_softmax_kernel(axis, dim);
  return decision;
}

// Computes dx = dy - exp(y) * sum(dy), with the sum over all ranks. LibTorch's kernel adds up the
// dy that it gets, so the first column gets what is missing, and its own dx is computed apart.
Kernel log_softmax_backward_kernel(int axis, int64_t dim) {
  return [axis, dim](Mesh& mesh, torch::jit::Stack& stack) {
    auto args = torch::jit::pop(stack, 4);
    const at::Tensor dy = args[0].toTensor().contiguous(), y = args[1].toTensor();
    const at::Tensor own = dy.sum(dim, true), sum = own.clone();
    all_reduce(mesh, axis, sum, Reduce::kSum);
    if (dy.size(dim) == 0) {
      torch::jit::push(stack, at::empty_like(dy, dy.options().dtype(args[3].toScalarType())));
      return;
    }
    at::Tensor column = dy.narrow(dim, 0, 1);
    const at::Tensor first = column.clone();
    column.add_(sum - own);
    const at::Tensor dx = at::_log_softmax_backward_data(dy, y, dim, args[3].toScalarType());
    column.copy_(first);
    dx.narrow(dim, 0, 1).copy_(first - y.narrow(dim, 0, 1).exp() * sum);
    torch::jit::push(stack, dx);
  };
}

// (dy, y, dim, input_dtype)
Decision log_softmax_backward(const OpCall& call) {
  const int64_t dim = call.dim(2, call.operands[0].ndim());
  Decision decision =
      choose(call,
             [&](int axis) {
               return row_ways(call, axis, dim, may_stay_cut(call, call.operands[0], axis, dim));
             },
             {call.operands[0].sizes});
  const int axis = cutting_axis(call, decision.inputs[0], dim);
  if (axis >= 0) decision.kernel = log_softmax_backward_kernel(axis, dim);
  return decision;
}

Decision softmax(const OpCall& call) {
  const int64_t dim = call.dim(1, call.operands[0].ndim());
  return choose(
      call, [&](int axis) { return row_ways(call, axis, dim, false); }, {call.operands[0].sizes});
}

Decision softmax_backward(const OpCall& call) {
  const int64_t dim = call.dim(2, call.operands[0].ndim());
  return choose(
      call, [&](int axis) { return row_ways(call, axis, dim, false); }, {call.operands[0].sizes});
}

// ---- nll_loss over [N, C] ----

// (self [N, C], target [N], weight?, reduction, ignore_index) -> (out, total_weight)
Kernel nll_kernel(const Part& columns, int64_t classes) {
  return [columns, classes](Mesh&, torch::jit::Stack& stack) {
    auto args = torch::jit::pop(stack, 5);
    const at::Tensor x = args[0].toTensor(), target = args[1].toTensor();
    const int64_t ignored = args[4].toInt();
    check_targets(target, classes, ignored);
    const Targets mine = local_targets(target, columns, ignored);
    at::Tensor rows = columns.count == 0 ? at::zeros(target.sizes(), x.options())
                                         : x.gather(1, mine.column.unsqueeze(1)).squeeze(1).neg_();
    rows.masked_fill_(mine.missing, 0);
    const bool sum = args[3].toInt() == at::Reduction::Sum;
    torch::jit::push(
        stack,
        sum ? rows.sum() : rows,
        sum ? target.ne(ignored).sum().to(x.scalar_type()) : at::zeros({}, x.options()));
  };
}

// (grad, self, target, weight?, reduction, ignore_index, total_weight) -> [N, C]
Kernel nll_backward_kernel(const Part& columns) {
  return [columns](Mesh&, torch::jit::Stack& stack) {
    auto args = torch::jit::pop(stack, 7);
    const at::Tensor grad = args[0].toTensor(), x = args[1].toTensor();
    const Targets mine = local_targets(args[2].toTensor(), columns, args[5].toInt());
    at::Tensor out = at::zeros_like(x);
    if (columns.count > 0) {
      const at::Tensor values = grad.neg().expand_as(mine.column).masked_fill(mine.missing, 0);
      out.scatter_(1, mine.column.unsqueeze(1), values.unsqueeze(1));
    }
    torch::jit::push(stack, out);
  };
}

Part columns_of(const OpCall& call, int axis, int64_t classes) {
  return part_of(classes, call.mesh.coordinates()[axis]);
}

Decision nll_loss(const OpCall& call) {
  const Operand& x = call.tensor(0);
  if (x.ndim() != 2) call.refuse("one row without a batch");
  const int64_t reduction = call.integer(3);
  const bool sum = reduction == at::Reduction::Sum;
  Decision decision =
      choose(call,
             [&](int axis) {
               Ways ways;
               for (const size_t arg : {0, 1}) {
                 const Placement& p = call.tensor(arg).placements[axis];
                 if (!p.is_shard(0) || reduction == at::Reduction::Mean) continue;
                 Way way = all_replicate(call, 2);
                 way.in[0] = way.in[1] = p;
                 way.out = sum ? std::vector<Placement>{partial(), partial()}
                               : std::vector<Placement>{p, replicate()};
                 ways.push_back(way);
               }
               const bool whole_sum = reduction != at::Reduction::Mean && !call.has_tensor(2);
               if (x.placements[axis] == shard(1) && may_stay_cut(call, x, axis, 1) && whole_sum) {
                 Way way = all_replicate(call, 2);
                 way.in[0] = shard(1);
                 way.out[0] = partial();
                 ways.push_back(way);
               }
               ways.push_back(all_replicate(call, 2));
               return ways;
             },
             {reduction == at::Reduction::None ? Sizes{x.sizes[0]} : Sizes{}, Sizes{}});
  const int axis = cutting_axis(call, decision.inputs[0], 1);
  if (axis >= 0) decision.kernel = nll_kernel(columns_of(call, axis, x.sizes[1]), x.sizes[1]);
  return decision;
}

Decision nll_loss_backward(const OpCall& call) {
  const Operand &x = call.tensor(1), &total = call.tensor(6);
  const bool none = call.integer(4) == at::Reduction::None;
  const bool mean = call.integer(4) == at::Reduction::Mean;
  Decision decision =
      choose(call,
             [&](int axis) {
               Ways ways;
               const auto add = [&](const Placement& p, const Placement& target) {
                 Way way = all_replicate(call, 1);
                 if (none && p.is_shard(0)) way.in[call.first[0]] = p;
                 way.in[call.first[1]] = way.out[0] = p;
                 way.in[call.first[2]] = target;
                 // Only a mean is divided by total_weight, so otherwise its placement does not
                 // matter.
                 if (!mean) way.in[call.first[6]] = total.placements[axis];
                 ways.push_back(way);
               };
               for (const size_t arg : {1, 2}) {
                 const Placement& p = call.tensor(arg).placements[axis];
                 if (p.is_shard(0)) add(p, p);
               }
               const bool whole_sum = !mean && !call.has_tensor(3);
               if (x.placements[axis] == shard(1) && may_stay_cut(call, x, axis, 1) && whole_sum)
                 add(shard(1), replicate());
               add(replicate(), replicate());
               return ways;
             },
             {x.sizes});
  const int axis = cutting_axis(call, decision.inputs[call.first[1]], 1);
  if (axis >= 0) decision.kernel = nll_backward_kernel(columns_of(call, axis, x.sizes[1]));
  return decision;
}

}  // namespace

void add_softmax_rules(RuleTable& rules) {
  rules["aten::_log_softmax"] = log_softmax;
  rules["aten::_log_softmax_backward_data"] = log_softmax_backward;
  rules["aten::_softmax"] = softmax;
  rules["aten::_softmax_backward_data"] = softmax_backward;
  rules["aten::nll_loss_forward"] = nll_loss;
  rules["aten::nll_loss_backward"] = nll_loss_backward;
}

}  // namespace yoke::mesh
