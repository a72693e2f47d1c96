// Angle i of position t is t * f_i with f_i = theta^(-2i / head_dim), or less if the positions are
// scaled for long sequences:
//
//   linear   f_i / factor.
//   dynamic  theta grows with the sequence, once that is longer than in the pretraining.
//   llama3   f_i / factor for pairs that turn slowly, f_i for pairs that turn fast, and a mixture
//            for those in between. How fast a pair turns is its number of turns over the length of
//            the pretraining.
//   yarn     the same with a mixture that is linear in i, and longer cosines and sines.
//
// The steps are those of transformers, in its order and precision, because a model was trained with
// their roundings. All layers of a micro-batch need the same
// angles, but a backend may run the blocks in any order and several micro-batches in turn. So the
// angles of the latest positions are cached: the first layer computes them, and the others reuse
// them.
#include "core/model/rope.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

namespace yoke {
namespace {

// Returns whether the host can read the values. A wrapped tensor has no storage of its own.
bool readable(const at::Tensor& t) {
  return t.is_cpu() && t.has_storage();
}

constexpr double kTurn = 2 * std::numbers::pi;

at::Tensor llama3(const at::Tensor& plain, const RopeScaling& s) {
  const auto original = static_cast<double>(s.original_positions);
  const at::Tensor wavelength = kTurn / plain;
  const at::Tensor mixture = (original / wavelength - s.slow) / (s.fast - s.slow);
  const at::Tensor between = (1 - mixture) * plain / s.factor + mixture * plain;
  const at::Tensor slow = wavelength > original / s.slow, fast = wavelength < original / s.fast;
  return at::where(slow, plain / s.factor, at::where(fast, plain, between));
}

// Returns the index of the pair, as a real number, that makes this number of turns over the length
// of the pretraining.
double pair_with_turns(double turns, int64_t head_dim, double theta, int64_t original) {
  return static_cast<double>(head_dim) * std::log(static_cast<double>(original) / (turns * kTurn)) /
         (2 * std::log(theta));
}

// powers: theta^(2i / head_dim).
at::Tensor yarn(const at::Tensor& powers, int64_t head_dim, double theta, const RopeScaling& s) {
  double first = pair_with_turns(s.fast, head_dim, theta, s.original_positions);
  double last = pair_with_turns(s.slow, head_dim, theta, s.original_positions);
  if (s.truncate) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, static_cast<double>(head_dim - 1));
  if (first == last) last += 0.001;
  const at::Tensor ramp =
      ((at::arange(head_dim / 2, powers.options()) - first) / (last - first)).clamp(0, 1);
  const at::Tensor plain = 1 - ramp;
  return (s.factor * powers).reciprocal() * (1 - plain) + powers.reciprocal() * plain;
}

}  // namespace

at::Tensor RopeCache::frequencies(int64_t seq_len, const at::TensorOptions& options) const {
  const RopeScaling& s = scaling_;
  const auto dim = static_cast<double>(head_dim_);
  double theta = theta_;
  if (s.kind == RopeScaling::Kind::kDynamic && seq_len > s.original_positions) {
    const double longer = static_cast<double>(seq_len) / static_cast<double>(s.original_positions);
    theta *= std::pow(s.factor * longer - (s.factor - 1), dim / (dim - 2));
  }
  const at::Tensor powers = at::pow(theta, at::arange(0, head_dim_, 2, options) / dim);
  switch (s.kind) {
    case RopeScaling::Kind::kLinear:
      return powers.reciprocal() / s.factor;
    case RopeScaling::Kind::kLlama3:
      return llama3(powers.reciprocal(), s);
    case RopeScaling::Kind::kYarn:
      return yarn(powers, head_dim_, theta, s);
    default:
      return powers.reciprocal();
  }
}

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
  const bool grows = scaling_.kind == RopeScaling::Kind::kDynamic && seq_len_ == 0;
  const int64_t seq_len = grows ? positions.max().item<int64_t>() + 1 : seq_len_;
  const at::Tensor turns = positions.to(wide).unsqueeze(-1) * frequencies(seq_len, options);
  angles_ = {turns.cos(), turns.sin()};
  if (scaling_.attention_factor != 1) {
    angles_.cos.mul_(scaling_.attention_factor);
    angles_.sin.mul_(scaling_.attention_factor);
  }
  seen_ = readable(positions) ? positions.clone() : positions;
  version_ = positions._version();
  return angles_;
}

}  // namespace yoke
