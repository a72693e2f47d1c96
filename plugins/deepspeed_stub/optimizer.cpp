// Dispatches the update of a slice to the kernel of its dtypes, in parts: the elements with weight
// decay, and those without; and those whose state is in the same memory at the same time.
#include "plugins/deepspeed_stub/optimizer.hpp"

#include <algorithm>

#include "yoke/error.hpp"
#include "yoke/optimizer_name.hpp"
#include "yoke/text.hpp"

namespace yoke::deepspeed_stub {
namespace {

template <class Master, class Gradient, class Copy>
UpdateArrays<Master, Gradient, Copy> arrays(const Span& param,
                                            const Span& exp_avg,
                                            const Span& exp_avg_sq,
                                            const Span& gradient,
                                            const Span& copy) {
  return {static_cast<Master*>(param.data),
          static_cast<Master*>(exp_avg.data),
          static_cast<Master*>(exp_avg_sq.data),
          static_cast<const Gradient*>(gradient.data),
          static_cast<Copy*>(copy.data)};
}

}  // namespace

Optimizer::Optimizer(const YokeOptimizer& config, const Setup& setup, const Store& store)
    : config_(config),
      device_(setup.device),
      host_(setup.host),
      pinned_(setup.settings.offload.optimizer.pinned),
      store_(store),
      moments_state_(setup.device,
                     optimizer_place(setup, store.owned.size),
                     setup.moments,
                     store.owned.size,
                     setup.master_dtype) {
  if (!yoke_is_adam(config.kind) && !yoke_is_lion(config.kind))
    throw Error(YOKE_INVALID_ARGUMENT,
                concat("deepspeed_stub does not have the optimizer ",
                       optimizer_name(config.kind),
                       "; it has adamw, adam and lion"));
  const char* kinds[2];
  const int count = yoke_moments(&config, kinds);
  for (int i = 0; i < count; ++i) moments_.push_back({kinds[i], Values(moments_state_, i)});
}

// The parameters in flight are in host memory that is freed now.
Optimizer::~Optimizer() {
  for (Stage& stage : stages_) {
    try {
      stage.sent.await();
    } catch (const Error&) {  // the device has failed, so nothing uses the memory
    }
  }
}

void Optimizer::begin_step(int64_t step, double lr) {
  step_ = step;
  lr_ = lr;
  totals_.reset();
}

std::vector<Optimizer::Part> Optimizer::parts_of(int64_t begin, int64_t end) const {
  std::vector<Part> parts;
  const int64_t decay_end = store_.owned.decay_end;
  for (int64_t at = begin, to = 0; at < end; at = to) {
    to = std::min(store_.cut(at, end), moments_state_.cut(at, end));
    if (at < decay_end) to = std::min(to, decay_end);
    parts.push_back({at, to - at, at < decay_end});
  }
  return parts;
}

void Optimizer::update(const Span& gradient, int64_t begin, int64_t count, const Span& totals) {
  std::vector<Part> on_host;
  const auto* const there = static_cast<const StepTotals*>(totals.data);
  // Files are not touched by a step that updates nothing. Only a kernel can read `totals` on a GPU.
  if (!device_.is_apart() && there->update == 0) return;
  for (const Part& part : parts_of(begin, begin + count)) {
    if (moments_state_.is_on_host(part.begin)) {
      on_host.push_back(part);
    } else {
      run(gradient, part, there);
    }
  }
  if (on_host.empty()) return;
  if (!totals_) device_.download(totals, &totals_.emplace());
  if (totals_->update != 0) run_on_host(gradient, on_host);
}

// Updates a part where its moments are in memory of the device.
void Optimizer::run(const Span& gradient, const Part& part, const StepTotals* totals) const {
  const Span g = gradient.sub(part.begin, part.count);
  if (store_.copy.empty()) return launch(device_, part, g, Span(), totals);
  const Span copy = store_.copy.window(part.begin, part.count);
  if (!store_.copy.is_on_host(part.begin)) return launch(device_, part, g, copy, totals);
  const Array values = Array::to_be_written(device_, part.count, copy.dtype);
  device_.upload(copy.data, values.span());  // stays what it is if the step updates nothing
  launch(device_, part, g, values.span(), totals);
  device_.download(values.span(), copy.data);
}

void Optimizer::run_on_host(const Span& gradient, const std::vector<Part>& parts) {
  fetch(gradient, parts[0], stages_[0]);
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[i];
    Stage& stage = stages_[i % 2];
    if (i + 1 < parts.size()) fetch(gradient, parts[i + 1], stages_[(i + 1) % 2]);
    stage.arrived.await();
    stage.sent.await();
    const Span g = stage.gradient.sub(0, part.count);
    const Span copy = store_.copy.window(part.begin, part.count);
    if (store_.copy.is_on_host(part.begin)) {
      launch(host_, part, g, copy, &*totals_);
      continue;
    }
    if (stage.values.empty())
      stage.values = Array::on_host(device_, OffloadSettings::kMaxTile, copy.dtype, pinned_);
    launch(host_, part, g, stage.values.sub(0, part.count), &*totals_);
    device_.issue_upload(stage.values.span().data, copy);
    stage.sent = Device::Mark(device_);
  }
}

void Optimizer::fetch(const Span& gradient, const Part& part, Stage& stage) const {
  if (stage.gradient.empty())
    stage.gradient = Array::on_host(device_, OffloadSettings::kMaxTile, gradient.dtype, pinned_);
  device_.issue_download(gradient.sub(part.begin, part.count), stage.gradient.span().data);
  stage.arrived = Device::Mark(device_);
}

// Calls the kernel of `where` for a part. gradient and copy: those of the part, in its memory; copy
// is empty if masters are not apart.
void Optimizer::launch(const Device& where,
                       const Part& part,
                       const Span& gradient,
                       const Span& copy,
                       const StepTotals* totals) const {
  const auto [begin, count, decay] = part;
  const YokeUpdate step = yoke_update_step(&config_, step_, lr_, decay ? 1 : 0);
  const Span param = store_.master.window(begin, count);
  const Span m = moments_[0].values.window(begin, count);
  const Span v = moments_.size() > 1 ? moments_[1].values.window(begin, count) : Span();
  const Span rounded = copy.dtype == param.dtype ? Span() : copy;
  const auto call_kernel =
      [&]<class Master, class Gradient, class Copy>(UpdateKernel<Master, Gradient, Copy> kernel) {
        kernel(where.queue(),
               count,
               step,
               arrays<Master, Gradient, Copy>(param, m, v, gradient, rounded),
               totals);
        // Offloaded masters may have the dtype of the parameters.
        if (copy.data != nullptr && rounded.data == nullptr) where.copy(param, copy);
      };
  const Kernels& k = where.kernels();
  const bool to_fp16 = rounded.data != nullptr && rounded.dtype == YOKE_F16;
  if (param.dtype == YOKE_F64 && gradient.dtype == YOKE_F64) return call_kernel(k.update_fp64);
  if (param.dtype == YOKE_F32 && gradient.dtype == YOKE_F32)
    return to_fp16 ? call_kernel(k.update_fp32_to_fp16) : call_kernel(k.update_fp32);
  if (param.dtype == YOKE_F32 && gradient.dtype == YOKE_F16 && to_fp16)
    return call_kernel(k.update_fp16);
  if (param.dtype == YOKE_F32 && gradient.dtype == YOKE_BF16) return call_kernel(k.update_bf16);
  throw Error(YOKE_INTERNAL,
              concat("the update has no kernel for ",
                     dtype_name(param.dtype),
                     " weights with ",
                     dtype_name(gradient.dtype),
                     " gradients"));
}

}  // namespace yoke::deepspeed_stub
