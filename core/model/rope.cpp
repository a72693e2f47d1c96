#include "core/model/rope.hpp"

#include <ATen/ATen.h>

#include <cstring>

namespace yoke {
namespace {

// A wrapped tensor has no storage of its own.
bool readable(const at::Tensor& t) {
  return t.is_cpu() && t.has_storage();
}

}  // namespace

// In CPU memory values are compared: callers reuse buffers behind fresh tensors, so that neither
// identity nor address tells anything. On a device that would wait for the stream; there the tensor
// itself is kept, so its identity cannot be taken over by another one, and its version tells of
// writes.
bool RopeCache::holds(const at::Tensor& positions, at::ScalarType dtype) const {
  if (!seen_.defined() || angles_.cos.scalar_type() != dtype) return false;
  if (!readable(positions)) return seen_.is_same(positions) && positions._version() == version_;
  return seen_.sizes() == positions.sizes() && positions.is_contiguous() &&
         std::memcmp(seen_.const_data_ptr(), positions.const_data_ptr(), positions.nbytes()) == 0;
}

const RopeCache::Angles& RopeCache::angles(const at::Tensor& positions, at::ScalarType dtype) {
  const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  if (holds(positions, wide)) return angles_;
  at::NoGradGuard no_grad;
  const auto options = positions.options().dtype(wide);
  const at::Tensor exponents =
      at::arange(0, head_dim_, 2, options) / static_cast<double>(head_dim_);
  const at::Tensor frequencies = at::pow(theta_, exponents).reciprocal();
  const at::Tensor turns = positions.to(wide).unsqueeze(-1) * frequencies;
  angles_ = {turns.cos(), turns.sin()};
  seen_ = readable(positions) ? positions.clone() : positions;
  version_ = positions._version();
  return angles_;
}

}  // namespace yoke
