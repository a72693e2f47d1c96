// torch_replicas: data parallelism on LibTorch. The blocks run directly as torch::nn modules, with
// one autograd graph for a whole micro-batch. The gradients are summed over the ranks once per
// step. yoke/flat.hpp provides parameters, optimizer and checkpoints.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "yoke/comm.hpp"
#include "yoke/flat.hpp"
#include "yoke/torch.hpp"

namespace {

// The host adds its LibTorch objects to the model only for a backend that was built with the same
// LibTorch. This backend cannot work without them, so their absence is an error.
const yoke::TorchModel& require_torch_model(const YokeModel& model) {
  if (const yoke::TorchModel* torch = yoke::torch_model(model)) return *torch;
  throw yoke::Error(YOKE_FAILED_PRECONDITION,
                    std::string("this backend was built with ") + yoke::kTorchTag +
                        ", the host with another LibTorch; build both with the same one");
}

// The model on one rank.
class Replica final : public yoke::Wrapped {
 public:
  Replica(const YokeModel& model, const YokeInitArgs& args)
      : host_(*args.host),
        model_(require_torch_model(model)),
        ranks_(host_, YOKE_AXIS_BIT(YOKE_DP_REPLICATE), "reduce"),
        state_(model, args) {}

  YokeWrapResult wrap_result() const override {
    return state_.bytes(ranks_.size() > 1 ? YOKE_DP_REPLICATE : -1);
  }
  YokeStepResult step(const YokeStepArgs& args) override {
    const bool training = yoke::is_training(args);
    const yoke::StepGuard guard(training);
    std::array<double, 2> sums{};
    if (training) state_.clear_grad();
    for (uint64_t m = 0; m < args.batch->num_micros; ++m) {
      const at::Tensor loss = forward(*args.batch->micros[m], sums);
      // token_weight counts the targets of all ranks, so the gradients summed over the ranks are
      // the gradient of the mean loss.
      if (training) backward(loss / args.batch->token_weight);
    }
    const auto [loss, weight] = ranks_.sum(sums);
    if (!training) return yoke::step_result(args, loss, weight, yoke::kUnknown);
    ranks_.all_reduce(state_.grad()).wait();
    const double norm = state_.norm();
    state_.update(args, norm);
    return yoke::step_result(args, loss, weight, norm);
  }
  void checkpoint(const YokeCheckpointArgs& args) override { state_.visit(args, host_.rank); }

 private:
  // Returns the loss of a micro-batch with its graph, and adds loss and number of targets to sums.
  at::Tensor forward(const YokeMicroBatch& micro, std::array<double, 2>& sums) const {
    const yoke::TorchInputs inputs = yoke::borrow(micro);
    at::Tensor carry;
    for (const yoke::TorchBlock& block : *model_.blocks) {
      if (host_.check_cancel(host_.ctx) != 0) throw yoke::Error(YOKE_CANCELLED, "cancelled");
      carry = block.forward(carry, inputs);
    }
    sums[0] += carry.item<double>();
    sums[1] += model_.loss_weight(inputs);
    return carry;
  }

  // Runs backward, adds the gradients of the leaf tensors to the flat state and frees them. A leaf
  // has no gradient if the loss does not depend on it.
  void backward(const at::Tensor& loss) {
    torch::autograd::backward({loss}, {});
    for (size_t p = 0; p < model_.params->size(); ++p) {
      at::Tensor& grad = (*model_.params)[p].mutable_grad();
      if (grad.defined()) state_.add_gradient(p, *yoke::TensorView(grad.contiguous()).get());
      grad.reset();
    }
  }

  const YokeHost& host_;
  const yoke::TorchModel& model_;
  const yoke::Comm ranks_;
  yoke::Flat state_;
};

class DataParallel final : public yoke::Backend {
 public:
  const YokeDescription& describe() const override {
    static constexpr int32_t dtypes[] = {YOKE_F32, YOKE_F64};
    static const YokeDescription description = [] {
      YokeDescription d = yoke::description("torch_replicas",
                                            "1.0.0",
                                            "data parallelism on LibTorch's autograd",
                                            dtypes,
                                            YOKE_AXIS_BIT(YOKE_DP_REPLICATE),
                                            1u << 0);
      d.torch_tag = yoke::view(yoke::kTorchTag);
      return d;
    }();
    return description;
  }
  void plan(const YokePlanArgs& args, YokePlan& plan, yoke::PlanReport& report) const override {
    yoke::resolve_flat(args, plan, report, YOKE_DP_REPLICATE, "remove it: all ranks replicate");
  }
  std::unique_ptr<yoke::Context> init(const YokeInitArgs& args) const override {
    return yoke::context_of<Replica>(args);
  }
};

}  // namespace

YOKE_EXPORT_BACKEND(DataParallel)
