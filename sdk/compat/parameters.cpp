#include "sdk/compat/parameters.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

namespace yoke::compat {
namespace {

constexpr int64_t kInitElements = 1 << 20;  // elements that are initialised at a time

}  // namespace

at::TensorOptions param_options(const YokePlan& plan, const YokeHost& host) {
  const bool on_device = host.device.type == YOKE_DEVICE_CUDA;
  return at::TensorOptions()
      .dtype(scalar_type(plan.param_dtype))
      .device(on_device ? at::Device(at::kCUDA, static_cast<int8_t>(host.device.id))
                        : at::Device(at::kCPU));
}

Parameters::Parameters(const YokeModel& model,
                       const FlatLayout& layout,
                       at::TensorOptions options,
                       std::vector<Range> owned)
    : model_(model),
      layout_(layout),
      owned_(std::move(owned)),
      buffer_(at::zeros({layout.size()}, options)),  // padding stays zero
      frozen_(model.summary->num_params) {
  for (const Range& range : owned_) {
    const at::Tensor values = part(range);
    masters_.push_back(has_copies() ? at::zeros(values.sizes(), options.dtype(at::kFloat))
                                    : values);
    if (!has_copies()) continue;
    for (const Piece& piece : layout.pieces(range))
      fill(masters_.back().narrow(0, piece.offset - range.begin, piece.count),
           piece.param,
           piece.begin);
  }
  try {
    for (int64_t p = 0; p < static_cast<int64_t>(model.summary->num_params); ++p) {
      const YokeParameter& param = *model.summary->params[p];
      const int64_t count = numel(param.shape, param.ndim);
      at::Tensor values;
      if (layout.offset(p) >= 0) {
        values = buffer_.narrow(0, layout.offset(p), count);
      } else {
        values = frozen_[p] = at::empty({count}, options);
      }
      fill(values, p, 0);
      const TensorView view(values.view(at::IntArrayRef(param.shape, param.ndim)));
      call([&](YokeError* err) { return model.bind_param(model.ctx, p, view.get(), err); });
      bound_ = p + 1;
    }
  } catch (...) {
    unbind();
    throw;
  }
}

Parameters::~Parameters() {
  unbind();
}

void Parameters::unbind() {
  while (bound_ > 0) model_.bind_param(model_.ctx, --bound_, nullptr, nullptr);
}

void Parameters::fill(at::Tensor values, int64_t param, int64_t begin) const {
  const at::Tensor host = at::empty({std::min(values.numel(), kInitElements)}, at::kFloat);
  for (int64_t done = 0; done < values.numel(); done += host.numel()) {
    const int64_t count = std::min(host.numel(), values.numel() - done);
    call([&](YokeError* err) {
      return model_.init_param(model_.ctx, param, begin + done, count, host.data_ptr<float>(), err);
    });
    values.narrow(0, done, count).copy_(host.narrow(0, 0, count));
  }
}

void Parameters::publish() const {
  if (!has_copies()) return;
  for (size_t i = 0; i < masters_.size(); ++i) part(owned_[i]).copy_(masters_[i]);
}

int64_t Parameters::bytes() const {
  auto bytes = static_cast<int64_t>(buffer_.nbytes());
  for (const at::Tensor& t : frozen_) bytes += t.defined() ? static_cast<int64_t>(t.nbytes()) : 0;
  for (const at::Tensor& t : masters_) bytes += has_copies() ? static_cast<int64_t>(t.nbytes()) : 0;
  return bytes;
}

}  // namespace yoke::compat
