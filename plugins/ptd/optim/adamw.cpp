// Runs AdamW and Adam with LibTorch's fused kernels, which read and write every element of
// parameters, gradients and moments once; the same formula from single operators would pass over
// memory several times.
//
// One call of the kernel takes lists of tensors, a single weight decay and a single element type.
// Therefore the constructor cuts the flat tensors into views and groups them by weight decay.
// Gradients whose type differs from that of the master copies are cast one part at a time, which
// needs a small buffer instead of a second copy of all gradients.
//
// The kernels always correct the moments, by 1 - beta^step. For a kind without correction they get
// a step so late that this factor is 1.
#include <ATen/ATen.h>

#include <algorithm>

#include "plugins/ptd/optim/optimizer.hpp"

namespace yoke::ptd {
namespace {

// A step at which 1 - beta^step is exactly 1. The largest beta below 1 is 1 - 2^-53 in fp64, the
// arithmetic of the kernel of the CPU, and its power is e^-512. In fp32, in which a device computes
// for fp32 parameters, the largest is 1 - 2^-24, and its power is 0.
constexpr double kLateStep = 0x1p62;

bool corrects(int32_t kind) {
  return kind == YOKE_ADAMW || kind == YOKE_ADAM;
}

class AdamW final : public Optimizer {
 public:
  AdamW(const YokeOptimizer& config, const ShardState& state, const std::vector<FlatSpan>& spans)
      : Optimizer(state),
        config_(config),
        adds_decay_(config.kind == YOKE_ADAM || config.kind == YOKE_ADAM_UNCORRECTED),
        step_(corrects(config.kind) ? fp32_step_ : at::full_like(fp32_step_, kLateStep)),
        grads_(state.grads),
        casts_(state.grads.scalar_type() != state.params.scalar_type()) {
    std::vector<FlatRange> ranges;
    for (const FlatSpan& span : spans) ranges.push_back({span.begin, span.count});
    moments_ = {Moment("exp_avg", state.params, ranges),
                Moment("exp_avg_sq", state.params, ranges)};
    for (const FlatSpan& span : spans) {
      const int64_t size = casts_ ? elements_at_a_time(state.params) : span.count;
      for (int64_t done = 0; done < span.count; done += size)
        add(state, span, span.begin + done, std::min(size, span.count - done));
    }
  }

  // Here learning rate and scale are numbers on the host: the learning rate keeps fp64, and no skip
  // flag is needed.
  void update(double scale) override {
    update_all(lr(), {clip_divisor(scale, fp32_step_.device()), {}});
  }

  void update_with(const ClipTensors& clip) override { update_all(fp32_lr_, clip); }

 private:
  // The arguments of one call of the kernel.
  struct Call {
    std::vector<at::Tensor> params, grads, exp_avgs, exp_avg_sqs, steps;
    double weight_decay;
  };

  // Adds a part of a span to calls_. If nothing is cast, all spans with the same weight decay share
  // a call.
  void add(const ShardState& state, const FlatSpan& span, int64_t begin, int64_t count) {
    const double decay = span.decay ? config_.weight_decay : 0;
    const auto same = [&](const Call& call) { return !casts_ && call.weight_decay == decay; };
    auto call = std::find_if(calls_.begin(), calls_.end(), same);
    if (call == calls_.end()) call = calls_.insert(call, Call{{}, {}, {}, {}, {}, decay});
    call->params.push_back(state.params.narrow(0, begin, count));
    call->grads.push_back(state.grads.narrow(0, begin, count));
    call->exp_avgs.push_back(moments_[0].of(begin, count));
    call->exp_avg_sqs.push_back(moments_[1].of(begin, count));
    call->steps.push_back(step_);
  }

  // lr: a number, or a scalar tensor on the device. If clip.skip is undefined, nothing is skipped.
  template <class Lr>
  void update_all(const Lr& lr, const ClipTensors& clip) {
    std::optional<at::Tensor> divisor, skip;
    if (clip.divisor.defined()) divisor = clip.divisor;
    if (clip.skip.defined()) skip = clip.skip;
    // The kernel can divide gradients itself, but only by an fp32 number, which is too coarse for
    // fp64 gradients.
    if (divisor && grads_.scalar_type() == at::kDouble) {
      grads_.div_(*divisor);
      divisor.reset();
    }
    if (divisor) divisor = divisor->to(at::kFloat);
    const auto run = [&](const auto&... arguments) {
      adds_decay_ ? at::_fused_adam_(arguments...) : at::_fused_adamw_(arguments...);
    };
    for (const Call& call : calls_) {
      run(call.params,
          casts_ ? std::vector<at::Tensor>{call.grads[0].to(call.params[0].scalar_type())}
                 : call.grads,
          call.exp_avgs,
          call.exp_avg_sqs,
          at::TensorList(),
          call.steps,
          lr,
          config_.beta1,
          config_.beta2,
          call.weight_decay,
          config_.eps,
          /*amsgrad=*/false,
          /*maximize=*/false,
          divisor,
          skip);
    }
  }

  const YokeOptimizer config_;
  const bool adds_decay_;  // whether weight decay is added to the gradient
  const at::Tensor step_;  // the step that corrects the moments
  at::Tensor grads_;
  const bool casts_;
  std::vector<Call> calls_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adamw(const YokeOptimizer& config,
                                      const ShardState& state,
                                      const std::vector<FlatSpan>& spans) {
  return std::make_unique<AdamW>(config, state, spans);
}

}  // namespace yoke::ptd
