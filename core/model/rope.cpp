// Angle i of position t is t * theta^(-2i / head_dim). All layers of a micro-batch need the same
// angles, but a backend may run the blocks in any order and several micro-batches in turn. So the
// angles of the latest positions are cached: the first layer computes them, and the others reuse
// them.
#include "core/model/rope.hpp"

#include <ATen/ATen.h>

#include <cstring>

namespace yoke {
namespace {

// Returns whether the host can read the values. A wrapped tensor has no storage of its own.
bool readable(const at::Tensor& t) {
  return t.is_cpu() && t.has_storage();
}

}  // namespace

// In CPU memory the values are compared: callers create new tensors on reused buffers, so neither
// the identity nor the address of a tensor shows whether its values are the same.
//
// On a device such a comparison would wait for the stream. There the identity of the tensor is
// compared, and its version, which every write increments. The tensor is kept alive, so that no
// other tensor can have the same identity.
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
