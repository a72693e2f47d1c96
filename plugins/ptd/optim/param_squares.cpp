// On a device one operator takes the norms of all parameters, because a few launches of kernels for
// each of them would take longer than the sums. It adds up in fp64. On the CPU that operator would
// copy each gradient to fp64 first, so squared_norm() is called for each parameter there.
#include "plugins/ptd/optim/param_squares.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "plugins/ptd/optim/grad_norm.hpp"

namespace yoke::ptd {
namespace {

// For more elements squared_norm() uses a dot product that LibTorch may split between threads, so
// that its last bit depends on their number.
constexpr int64_t kPiece = 1 << 18;

at::Tensor squared_norm_of_pieces(const at::Tensor& grad) {
  at::Tensor sum = at::zeros({}, grad.options().dtype(at::kDouble));
  for (int64_t done = 0; done < grad.numel(); done += kPiece)
    sum.add_(squared_norm(grad.narrow(0, done, std::min(kPiece, grad.numel() - done))));
  return sum;
}

}  // namespace

ParamSquares::ParamSquares(const ModelSpec& model, const ShardState& state)
    : size_(static_cast<int64_t>(model.params.size())) {
  std::vector<int64_t> indices;
  for (const ShardState::UnitShard& unit : state.units) {
    if (!unit.trainable) continue;
    for (const FlatLayout::Slot& slot : unit.layout.slots()) {
      if (!model.params[slot.param].counted) continue;
      grads_.push_back(state.grads.narrow(0, unit.begin + slot.offset, slot.numel));
      indices.push_back(slot.param);
    }
  }
  indices_ = at::tensor(indices, at::kLong).to(state.grads.device());
}

void ParamSquares::write(const at::Tensor& out) const {
  if (grads_.empty()) return;
  at::Tensor squares;
  if (out.is_cpu()) {
    std::vector<at::Tensor> each;
    for (const at::Tensor& grad : grads_) each.push_back(squared_norm_of_pieces(grad));
    squares = at::stack(each);
  } else {
    squares = at::stack(at::_foreach_norm(grads_, 2, at::kDouble)).square_();
  }
  out.index_copy_(0, indices_, squares);
}

// LibTorch's sum of many numbers on the CPU depends on the number of threads.
at::Tensor sum_in_order(const at::Tensor& squares) {
  if (!squares.is_cpu()) return squares.sum();
  const auto* begin = squares.const_data_ptr<double>();
  return at::scalar_tensor(std::accumulate(begin, begin + squares.numel(), 0.0), squares.options());
}

}  // namespace yoke::ptd
