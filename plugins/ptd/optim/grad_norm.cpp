// One sum of squares in fp32 over millions of elements would lose about 1e-4 of the norm; one in
// fp64 would convert every element first. So rows of 512 elements are summed in fp32 by LibTorch's
// vectorised norm, and the norms of the rows, which are few, are squared and summed in fp64.
#include "plugins/ptd/optim/grad_norm.hpp"

#include <ATen/ATen.h>

#include <algorithm>

namespace yoke::ptd {
namespace {

constexpr int64_t kRow = 512;  // elements of a row, few enough for a sum in fp32

// Returns the sum of squares of a matrix [rows, elements of a row].
at::Tensor sum_of_rows(const at::Tensor& rows) {
  const at::ScalarType wide = rows.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor norms =
      at::linalg_vector_norm(rows, 2, at::IntArrayRef{1}, false, wide).to(at::kDouble);
  return at::dot(norms, norms);
}

}  // namespace

at::Tensor squared_norm(const at::Tensor& grads) {
  const int64_t n = grads.numel();
  const int64_t body = n / kRow * kRow;
  at::Tensor sum = at::zeros({}, grads.options().dtype(at::kDouble));
  if (body > 0) sum.add_(sum_of_rows(grads.narrow(0, 0, body).view({-1, kRow})));
  if (n > body) sum.add_(sum_of_rows(grads.narrow(0, body, n - body).view({1, -1})));
  return sum;
}

at::Tensor own_squared_norm(const ShardState& state, int tp_rank) {
  const auto counts = [&](const FlatSpan& span) {
    return span.counted && (!span.tp_replicated || tp_rank == 0);
  };
  if (std::all_of(state.spans.begin(), state.spans.end(), counts)) return squared_norm(state.grads);
  at::Tensor sum = at::zeros({}, state.grads.options().dtype(at::kDouble));
  for (const FlatSpan& span : state.spans) {
    if (counts(span)) sum.add_(squared_norm(state.grads.narrow(0, span.begin, span.count)));
  }
  return sum;
}

ClipTensors clip_on_device(const at::Tensor& squared, double clip, const at::Tensor& loss_scale) {
  ClipTensors result;
  result.skip = squared.isfinite().logical_not().to(at::kFloat);
  result.divisor = loss_scale;
  if (clip > 0) {
    at::Tensor norm = squared.sqrt();
    if (loss_scale.defined()) norm.div_(loss_scale);
    result.divisor = norm.add_(1e-6).div_(clip).clamp_min_(1);
    if (loss_scale.defined()) result.divisor.mul_(loss_scale);
  }
  return result;
}

at::Tensor clip_divisor(double scale, at::Device device) {
  if (scale == 1) return {};
  return at::full({}, 1 / scale, at::TensorOptions().dtype(at::kDouble).device(device));
}

}  // namespace yoke::ptd
