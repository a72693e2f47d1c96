// Runs AdamW and its variants with the kernel of the host's device, in one pass over memory.
// LibTorch's fused kernel writes the divided gradients back, needs gradients of the type of the
// parameters, and leaves it to another pass to cast the parameters to the compute type.
//
// A launch updates neighbouring elements with the same weight decay. Its constants are in device
// memory, where begin_step() writes them, so a recorded update can be replayed in later steps.
#include <ATen/ATen.h>

#include "plugins/ptd/optim/optimizer.hpp"
#include "yoke/adamw_element.hpp"

namespace yoke::ptd {
namespace {

enum Decay { kWithout, kWith, kDecays };

class DeviceAdamW final : public Optimizer {
 public:
  DeviceAdamW(const YokeOptimizer& config,
              const ShardState& state,
              const std::vector<FlatSpan>& spans,
              const TorchKernels& kernels)
      : config_(config), kernels_(kernels) {
    const auto options = state.params.options();
    host_coefficients_ = at::empty({kDecays, kAdamWCoefficients},
                                   options.device(at::kCPU).pinned_memory(state.params.is_cuda()));
    coefficients_ = at::empty({kDecays, kAdamWCoefficients}, options);
    std::vector<FlatSpan> merged;
    for (const FlatSpan& span : spans) {
      const bool follows = !merged.empty() && merged.back().decay == span.decay &&
                           merged.back().begin + merged.back().count == span.begin;
      follows ? void(merged.back().count += span.count) : merged.push_back(span);
    }
    std::vector<FlatRange> ranges;
    for (const FlatSpan& span : merged) ranges.push_back({span.begin, span.count});
    moments_ = {Moment("exp_avg", state.params, ranges),
                Moment("exp_avg_sq", state.params, ranges)};
    for (const FlatSpan& span : merged) {
      const auto part = [&](const at::Tensor& flat) {
        return flat.defined() ? flat.narrow(0, span.begin, span.count) : flat;
      };
      calls_.push_back({.params = part(state.params),
                        .exp_avg = moments_[0].of(span.begin, span.count),
                        .exp_avg_sq = moments_[1].of(span.begin, span.count),
                        .grads = part(state.grads),
                        .copy = part(state.copies),
                        .coefficients = coefficients_[span.decay ? kWith : kWithout],
                        .divisor = {},
                        .skip = {}});
    }
  }

  void begin_step(int64_t step, double lr) override {
    Optimizer::begin_step(step, lr);
    for (const int decay : {kWithout, kWith}) {
      const AdamWCoefficients<double> c =
          adamw_coefficients<double>(yoke_adamw_step(&config_, step, lr, decay));
      host_coefficients_[decay].copy_(at::from_blob(
          const_cast<AdamWCoefficients<double>*>(&c), {kAdamWCoefficients}, at::kDouble));
    }
    // A step begins when the one before has ended, so the device has read what this overwrites.
    coefficients_.copy_(host_coefficients_, /*non_blocking=*/true);
  }

  void update(double scale) override {
    update_with({clip_divisor(scale, coefficients_.device()), {}});
  }

  void update_with(const ClipTensors& clip) override {
    for (AdamWTensors& call : calls_) {
      call.divisor = clip.divisor;
      call.skip = clip.skip;
      kernels_.adamw(kernels_.ctx, call);
    }
  }

 private:
  const YokeOptimizer config_;
  const TorchKernels& kernels_;
  at::Tensor coefficients_, host_coefficients_;  // [kDecays, kAdamWCoefficients]
  std::vector<AdamWTensors> calls_;
};

}  // namespace

std::unique_ptr<Optimizer> make_device_adamw(const YokeOptimizer& config,
                                             const ShardState& state,
                                             const std::vector<FlatSpan>& spans,
                                             const TorchKernels& kernels) {
  return std::make_unique<DeviceAdamW>(config, state, spans, kernels);
}

}  // namespace yoke::ptd
