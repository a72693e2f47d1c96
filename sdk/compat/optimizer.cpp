// A range that a rank owns is contiguous, so an update needs few views: neighbours that are
// treated alike are one view, and padding between them belongs to it. Padding has zero values,
// gradients and moments, which no update changes.
#include "sdk/compat/optimizer.hpp"

#include <ATen/ATen.h>

namespace yoke::compat {
namespace {

constexpr int64_t kRow = 512;  // elements whose squares are summed in fp32

// Returns the sum of squares of a matrix [rows, elements of a row].
at::Tensor sum_of_rows(const at::Tensor& rows) {
  const at::ScalarType wide = rows.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor norms =
      at::linalg_vector_norm(rows, 2, at::IntArrayRef{1}, false, wide).to(at::kDouble);
  return at::dot(norms, norms);
}

}  // namespace

void add_squares(const at::Tensor& values, const at::Tensor& sum) {
  const int64_t body = values.numel() / kRow * kRow;
  if (body > 0) sum.add_(sum_of_rows(values.narrow(0, 0, body).view({-1, kRow})));
  if (body < values.numel())
    sum.add_(sum_of_rows(values.narrow(0, body, values.numel() - body).view({1, -1})));
}

Optimizer::Optimizer(const YokeOptimizer& config,
                     const YokeModelSummary& model,
                     const FlatLayout& layout,
                     const Parameters& parameters,
                     const at::Tensor& gradients,
                     const std::function<bool(int64_t param)>& counts)
    : config_(config), parameters_(parameters), gradients_(gradients) {
  if (config.kind == YOKE_ADAMW) {
    kinds_ = {"exp_avg", "exp_avg_sq"};
  } else if (config.momentum != 0) {
    kinds_ = {"momentum"};
  }
  moments_.resize(kinds_.size());
  // The indices of these groups are those of group_of() below.
  for (const double decay : {config.weight_decay, 0.0}) {
    for (const bool counted : {true, false})
      groups_.push_back(
          {decay, counted, {}, {}, std::vector<std::vector<at::Tensor>>(kinds_.size())});
  }
  for (size_t i = 0; i < parameters.owned().size(); ++i) {
    for (auto& of_kind : moments_) of_kind.push_back(at::zeros_like(parameters.master(i)));
    add(model, layout, counts, i);
  }
}

void Optimizer::add(const YokeModelSummary& model,
                    const FlatLayout& layout,
                    const std::function<bool(int64_t param)>& counts,
                    size_t i) {
  const Range& range = parameters_.owned()[i];
  const std::vector<Piece> pieces = layout.pieces(range);
  const auto group_of = [&](size_t p) {
    const int64_t param = pieces[p].param;
    return (model.params[param]->decay != 0 ? 0 : 2) + (counts(param) ? 0 : 1);
  };
  for (size_t first = 0, last; first < pieces.size(); first = last + 1) {
    for (last = first; last + 1 < pieces.size() && group_of(last + 1) == group_of(first);) ++last;
    const int64_t offset = pieces[first].offset;
    const int64_t count = pieces[last].offset + pieces[last].count - offset;
    Group& group = groups_[group_of(first)];
    group.values.push_back(parameters_.master(i).narrow(0, offset - range.begin, count));
    group.grads.push_back(gradients_.narrow(0, offset, count));
    for (size_t k = 0; k < kinds_.size(); ++k)
      group.moments[k].push_back(moments_[k][i].narrow(0, offset - range.begin, count));
  }
}

at::Tensor Optimizer::squared_norm() const {
  // A range that holds nothing but padding has no views.
  const at::Tensor sum = at::zeros({}, gradients_.options().dtype(at::kDouble));
  for (const Group& group : groups_) {
    if (!group.counts) continue;
    for (const at::Tensor& grad : group.grads) add_squares(grad, sum);
  }
  return sum;
}

void Optimizer::update(int64_t step, double lr, double scale) {
  last_step_ = step;
  for (const Group& group : groups_) {
    if (group.values.empty()) continue;
    std::vector<at::Tensor> grads;
    for (const at::Tensor& grad : group.grads)
      grads.push_back(grad.to(group.values[0].scalar_type()));
    if (scale < 1) at::_foreach_mul_(grads, scale);
    if (config_.kind == YOKE_ADAMW) {
      adamw(group, grads, lr);
    } else {
      sgd(group, grads, lr);
    }
  }
  parameters_.publish();
}

void Optimizer::adamw(const Group& group, const std::vector<at::Tensor>& grads, double lr) const {
  const at::Tensor step =
      at::full({}, static_cast<double>(last_step_), group.values[0].options().dtype(at::kFloat));
  at::_fused_adamw_(group.values,
                    grads,
                    group.moments[0],
                    group.moments[1],
                    {},
                    std::vector<at::Tensor>(grads.size(), step),
                    lr,
                    config_.beta1,
                    config_.beta2,
                    group.weight_decay,
                    config_.eps,
                    /*amsgrad=*/false,
                    /*maximize=*/false);
}

void Optimizer::sgd(const Group& group, const std::vector<at::Tensor>& grads, double lr) const {
  for (size_t i = 0; i < grads.size(); ++i) {
    const at::Tensor& values = group.values[i];
    if (group.weight_decay != 0) values.mul_(1 - lr * group.weight_decay);
    if (kinds_.empty()) {
      values.add_(grads[i], -lr);
    } else {
      values.add_(group.moments[0][i].mul_(config_.momentum).add_(grads[i]), -lr);
    }
  }
}

int64_t Optimizer::bytes() const {
  int64_t bytes = 0;
  for (const auto& of_kind : moments_) {
    for (const at::Tensor& t : of_kind) bytes += static_cast<int64_t>(t.nbytes());
  }
  return bytes;
}

}  // namespace yoke::compat
