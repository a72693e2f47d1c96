// These rules cover the look-up of embedding rows. If the table is cut by rows, each rank looks up
// the rows that it has and takes zeros for the others, so the result is Partial
// (vocabulary-parallel embedding).
#include <ATen/ATen.h>

#include "sdk/mesh/dtensor/rules/rules.hpp"
#include "yoke/error.hpp"

namespace yoke::mesh {
namespace {

// Returns the rows of the table that this rank has, over all axes that cut them.
Part rows_of(Mesh& mesh, const Placements& table, int64_t rows) {
  Part part{0, rows};
  for (int a = 0; a < mesh.ndim(); ++a) {
    if (!table[a].is_shard(0)) continue;
    const Part inner = part_of(part.count, mesh.coordinates()[a]);
    part = {part.begin + inner.begin, inner.count};
  }
  return part;
}

bool cuts_rows(const Placements& table) {
  for (const Placement& p : table) {
    if (p.is_shard(0)) return true;
  }
  return false;
}

// A look-up on this rank. ids: relative to the first row of this rank, 0 where the row is missing.
// missing: true where this rank does not have the row.
struct LocalIds {
  at::Tensor ids, missing;
};
LocalIds local_ids(const at::Tensor& ids, const Part& rows) {
  at::Tensor shifted = ids - rows.begin;
  at::Tensor missing = shifted.lt(0).logical_or_(shifted.ge(rows.count));
  return {shifted.masked_fill_(missing, 0), missing};
}

// Throws for ids outside of the table, as ATen does for a plain table. Otherwise every rank would
// take an illegal id for a row of another rank. On a device the check is left out, because it would
// make the host wait.
void check_ids(const at::Tensor& ids, int64_t total) {
  if (!ids.is_cpu() || ids.numel() == 0) return;
  const int64_t least = ids.min().item<int64_t>(), most = ids.max().item<int64_t>();
  if (least >= 0 && most < total) return;
  throw Error(YOKE_INVALID_ARGUMENT,
              "embedding: id " + std::to_string(least < 0 ? least : most) + "; allowed: 0 to " +
                  std::to_string(total - 1));
}

// Returns a kernel that looks up local rows and gives zeros for all other ids.
Kernel lookup(const Part& rows, int64_t total) {
  return [rows, total](Mesh&, torch::jit::Stack& stack) {
    auto args = torch::jit::pop(stack, 5);
    const at::Tensor table = args[0].toTensor();
    check_ids(args[1].toTensor(), total);
    const LocalIds local = local_ids(args[1].toTensor(), rows);
    at::Tensor out;
    if (rows.count == 0) {
      Sizes sizes = local.ids.sizes().vec();
      sizes.push_back(table.size(1));
      out = at::zeros(sizes, table.options());
    } else {
      out = at::embedding(table, local.ids).masked_fill_(local.missing.unsqueeze(-1), 0);
    }
    torch::jit::push(stack, out);
  };
}

// embedding(weight [V, D], ids, padding_idx, scale_grad_by_freq, sparse)
Decision embedding(const OpCall& call) {
  const Operand &table = call.tensor(0), &ids = call.tensor(1);
  Sizes out = ids.sizes;
  out.push_back(table.sizes[1]);
  Decision decision = choose(call,
                             [&](int axis) {
                               const Placement &w = table.placements[axis],
                                               &i = ids.placements[axis];
                               Ways ways;
                               if (i.is_shard()) ways.push_back({{replicate(), i}, {i}});
                               if (w == shard(0)) ways.push_back({{w, replicate()}, {partial()}});
                               if (w.is_shard(1))
                                 ways.push_back({{w, replicate()}, {shard(ids.ndim(), w.blocks)}});
                               ways.push_back({{replicate(), replicate()}, {replicate()}});
                               return ways;
                             },
                             {out});
  if (cuts_rows(decision.inputs[0]))
    decision.kernel =
        lookup(rows_of(call.mesh, decision.inputs[0], table.sizes[0]), table.sizes[0]);
  return decision;
}

// Returns a kernel that sums the gradients of this rank's rows. A row may be used often, so the sum
// is in fp32 or better.
Kernel sum_rows(const Part& rows) {
  return [rows](Mesh&, torch::jit::Stack& stack) {
    auto args = torch::jit::pop(stack, 5);
    const at::Tensor grad = args[0].toTensor();
    const LocalIds local = local_ids(args[1].toTensor(), rows);
    const bool low = grad.scalar_type() == at::kBFloat16 || grad.scalar_type() == at::kHalf;
    at::Tensor mine =
        (low ? grad.to(at::kFloat) : grad).masked_fill(local.missing.unsqueeze(-1), 0);
    const at::Tensor sum = at::embedding_dense_backward(
        mine, local.ids, std::max<int64_t>(rows.count, 1), /*padding_idx=*/-1, false);
    torch::jit::push(stack, sum.narrow(0, 0, rows.count).to(grad.scalar_type()));
  };
}

// embedding_dense_backward(grad, ids, num_weights, padding_idx, scale_grad_by_freq) -> [V, D]. The
// arguments do not show how the table is cut. Along axes that cut parameters the result is cut by
// rows, as the tables of our models are, so that each rank sums only its own rows.
Decision embedding_backward(const OpCall& call) {
  const Operand &grad = call.tensor(0), &ids = call.tensor(1);
  if (call.integer(3) != -1 || call.boolean(4)) call.refuse("padding_idx and scale_grad_by_freq");
  const Sizes out{call.integer(2), grad.sizes.back()};
  Decision decision =
      choose(call,
             [&](int axis) {
               const Placement& g = grad.placements[axis];
               Ways ways;
               const bool of_ids = g.is_shard() && g.dim < ids.ndim();
               if (g.is_shard(ids.ndim())) ways.push_back({{g, replicate()}, {shard(1, g.blocks)}});
               if (call.mesh.axis(axis).cuts_parameters) {
                 ways.push_back({{replicate(), replicate()}, {shard(0)}});
                 return ways;
               }
               if (of_ids) ways.push_back({{g, g}, {partial()}});
               if (ids.placements[axis].is_shard())
                 ways.push_back({{ids.placements[axis], ids.placements[axis]}, {partial()}});
               ways.push_back({{replicate(), replicate()}, {replicate()}});
               return ways;
             },
             {out});
  decision.kernel = sum_rows(rows_of(call.mesh, decision.outputs[0].placements, out[0]));
  return decision;
}

}  // namespace

void add_embedding_rules(RuleTable& rules) {
  rules["aten::embedding"] = embedding;
  rules["aten::embedding_dense_backward"] = embedding_backward;
}

}  // namespace yoke::mesh
