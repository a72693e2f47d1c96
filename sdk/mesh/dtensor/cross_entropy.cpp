// LibTorch composes the loss of log_softmax and nll_loss, for which there are rules
// (rules/softmax.cpp). On distributed logits, this composition reads or writes a tensor of their
// size about ten times, and the logits are often the largest tensor of a step. This file computes
// the same with one pass forward and one backward.
//
// The forward reads the logits in groups of rows that fit into the cache, and keeps lse, the
// log-sum-exp of each row: where the vocabulary is cut, each rank computes that of its columns, and
// the ranks exchange it. Each rank then adds lse minus the logit for the targets whose column it
// has. The backward recomputes the softmax: dlogits = (exp(logits - lse) - onehot(target)) * dy.
//
// The composition is decomposed above autograd. A kernel that replaces it must therefore be
// registered on autograd's key, and plain tensors have this key too. LibTorch has no spare key
// above autograd that only DTensors could have.
#include "sdk/mesh/dtensor/cross_entropy.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/ops/cross_entropy_loss_native.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>

#include "sdk/mesh/dtensor/dtensor.hpp"
#include "sdk/mesh/dtensor/redistribute.hpp"
#include "sdk/mesh/dtensor/rules/targets.hpp"
#include "sdk/mesh/dtensor/wrap.hpp"

namespace yoke::mesh {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kWhole = -1;  // no axis cuts the columns

// Calls f(begin, count) for groups of rows. On the CPU a group fits into the second-level caches of
// the threads, among which LibTorch's operators divide it by rows. On a device there is one group.
template <class F>
void each_group(const at::Tensor& rows, F&& f) {
  if (!rows.is_cpu()) return f(0, rows.size(0));
  const int64_t cache = (int64_t{256} << 10) * at::get_num_threads();
  const int64_t row = std::max<int64_t>(rows.size(1) * rows.element_size(), 1);
  const int64_t most = std::max<int64_t>(cache / row, 1);
  for (int64_t begin = 0; begin < rows.size(0); begin += most)
    f(begin, std::min(most, rows.size(0) - begin));
}

// Returns log(sum(exp(row))) of each row: [N, 1]. It is -inf where all columns are -inf, and
// without columns.
at::Tensor log_sum_exp(const at::Tensor& rows) {
  at::Tensor lse = at::full({rows.size(0), 1}, -INFINITY, rows.options());
  if (rows.size(1) == 0) return lse;
  each_group(rows, [&](int64_t begin, int64_t count) {
    const at::Tensor x = rows.narrow(0, begin, count);
    const at::Tensor most = x.amax(1, true);
    most.masked_fill_(most.eq(-INFINITY), 0);
    lse.narrow(0, begin, count).copy_((x - most).exp_().sum(1, true).log_().add_(most));
  });
  return lse;
}

// Returns the log-sum-exp over the columns of all ranks along an axis. Collective over the axis.
at::Tensor over_ranks(Mesh& mesh, int64_t cut, const at::Tensor& own) {
  const Mesh::Axis& axis = mesh.axis(static_cast<int>(cut));
  const at::Tensor all = at::empty({axis.comm.size(), own.numel()}, own.options());
  mesh.trace().collective("all-gather", axis.name, static_cast<int64_t>(all.nbytes()));
  axis.comm.all_gather(all, own).wait();
  return at::logsumexp(all, 0).unsqueeze_(1);
}

Part columns_of(const Mesh& mesh, int64_t cut, int64_t vocab) {
  return cut == kWhole ? Part{0, vocab} : part_of(vocab, mesh.coordinates()[cut]);
}

// targets: those of this rank's rows, plain. cut: axis that cuts the columns, or kWhole.
struct CrossEntropyNode : torch::autograd::Function<CrossEntropyNode> {
  static at::Tensor forward(AutogradContext* ctx,
                            const at::Tensor& logits,
                            const at::Tensor& targets,
                            int64_t cut,
                            int64_t ignored) {
    Mesh& mesh = *meta_of(logits).mesh;
    const at::Tensor rows = local_of(logits).contiguous();
    const Placements& at = meta_of(logits).placements;
    at::Tensor lse = log_sum_exp(rows);
    if (cut != kWhole) lse = over_ranks(mesh, cut, lse);
    const Targets mine = local_targets(targets, columns_of(mesh, cut, logits.size(1)), ignored);
    at::Tensor loss = at::zeros({}, lse.options().dtype(at::kDouble));
    if (rows.size(1) > 0) {
      const at::Tensor of_rows = lse - rows.gather(1, mine.column.unsqueeze(1));
      loss = of_rows.masked_fill_(mine.missing.unsqueeze(1), 0).sum(at::kDouble);
    }
    // The rows may become those of other placements in `logits`, which is saved only because its
    // version shows whether its values have changed before the backward.
    ctx->save_for_backward({rows, lse, targets, logits});
    ctx->saved_data["mesh"] = reinterpret_cast<int64_t>(&mesh);
    ctx->saved_data["placements"] = bits_of(at);
    ctx->saved_data["sizes"] = logits.sizes().vec();
    ctx->saved_data["cut"] = cut;
    ctx->saved_data["ignored"] = ignored;
    Placements parts;
    for (int a = 0; a < kMaxMeshAxes; ++a) {
      if (at[a].is_shard()) parts[a] = partial();
    }
    return wrap(loss.to(rows.scalar_type()), mesh, parts, {});
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (at::GradMode::is_enabled())
      throw Error(YOKE_UNIMPLEMENTED,
                  "cross_entropy_loss of distributed logits has no second derivative");
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &rows = saved[0], &lse = saved[1], &targets = saved[2];
    Mesh& mesh = *reinterpret_cast<Mesh*>(ctx->saved_data["mesh"].toInt());
    const std::vector<int64_t> sizes = ctx->saved_data["sizes"].toIntVector();
    const int64_t ignored = ctx->saved_data["ignored"].toInt();
    const at::Tensor dy = is_wrapped(grads[0]) ? full_tensor(grads[0]) : grads[0];
    const at::Tensor scale = (targets.ne(ignored) * dy).unsqueeze(1);
    const at::Tensor dx = at::empty_like(rows);
    if (rows.size(1) > 0) {
      each_group(rows, [&](int64_t begin, int64_t count) {
        at::Tensor part = dx.narrow(0, begin, count);
        at::sub_out(part, rows.narrow(0, begin, count), lse.narrow(0, begin, count));
        part.exp_().mul_(scale.narrow(0, begin, count));
      });
      const Targets mine = local_targets(
          targets, columns_of(mesh, ctx->saved_data["cut"].toInt(), sizes[1]), ignored);
      const at::Tensor ones = dy.neg().expand_as(targets).masked_fill(mine.missing, 0);
      dx.scatter_add_(1, mine.column.unsqueeze(1), ones.unsqueeze(1));
    }
    const Placements placements = from_bits(ctx->saved_data["placements"].toIntVector());
    return {wrap(dx, mesh, placements, sizes), {}, {}, {}};
  }
};

// Returns the sum of the rows' losses. logits are [N, V] and distributed, targets [N].
at::Tensor sum_of_rows(const at::Tensor& logits, const at::Tensor& targets, int64_t ignored) {
  Mesh& mesh = *meta_of(logits).mesh;
  Placements of_logits = meta_of(logits).placements, of_targets;
  int64_t cut = kWhole;
  for (int a = 0; a < mesh.ndim(); ++a) {
    if (of_logits[a].is_shard(0)) {
      of_targets[a] = of_logits[a];
    } else if (mesh.size(a) > 1 && of_logits[a] == shard(1) && mesh.axis(a).loss_parallel &&
               cut == kWhole) {
      cut = a;
    } else {
      of_logits[a] = replicate();
    }
  }
  const at::Tensor mine =
      is_wrapped(targets)
          ? local_of(redistribute(targets, of_targets))
          : redistribute_local(mesh, targets, targets.sizes().vec(), {}, of_targets);
  check_targets(mine, logits.size(1), ignored);
  at::Tensor loss =
      CrossEntropyNode::apply(redistribute(logits, of_logits), mine.contiguous(), cut, ignored);
  mesh.trace().print("aten::cross_entropy_loss  " + to_string(of_logits, mesh.ndim()) + " -> " +
                     to_string(meta_of(loss).placements, mesh.ndim()));
  return loss;
}

at::Tensor cross_entropy_loss(const at::Tensor& logits,
                              const at::Tensor& targets,
                              const std::optional<at::Tensor>& weight,
                              int64_t reduction,
                              c10::SymInt ignored,
                              double label_smoothing) {
  const auto is_of_a_language_model = [&] {
    const bool weighted = weight.has_value() && weight->defined();
    const bool wide = logits.scalar_type() == at::kFloat || logits.scalar_type() == at::kDouble;
    return reduction == at::Reduction::Sum && !weighted && label_smoothing == 0 && wide &&
           targets.scalar_type() == at::kLong && logits.dim() == 2 && targets.dim() == 1 &&
           targets.size(0) == logits.size(0);
  };
  if (is_wrapped(logits) && is_of_a_language_model())
    return sum_of_rows(logits, targets, ignored.expect_int());
  return at::native::cross_entropy_loss_symint(
      logits, targets, weight, reduction, std::move(ignored), label_smoothing);
}

}  // namespace

void register_cross_entropy(torch::Library& aten_autograd) {
  aten_autograd.impl("cross_entropy_loss", TORCH_FN(cross_entropy_loss));
}

}  // namespace yoke::mesh
