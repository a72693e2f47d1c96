// A model under DDP: every rank holds all of it, and gradients are averaged by c10d::Reducer. What
// wrap_model, step and checkpoint of the contract mean here.
#pragma once

#include <memory>
#include <optional>

#include "plugins/accelerate_compat/ddp/optimizer.hpp"
#include "plugins/accelerate_compat/ddp/parameters.hpp"
#include "plugins/accelerate_compat/ddp/reducer.hpp"
#include "yoke/backend.hpp"

namespace yoke::accelerate_compat {

// What the models of one context share.
struct Environment {
  // Collective over the world. Throws Error if the host has no process groups.
  explicit Environment(const YokeInitArgs& args);
  const YokePlan& plan;
  const YokeHost& host;
  const DdpOptions options;
  c10d::ProcessGroup* gradients = nullptr;  // NULL on a single rank
  c10d::ProcessGroup* scalars = nullptr;
};

class Replica final : public Wrapped {
 public:
  // Collective. model and environment outlive the replica.
  Replica(const YokeModel& model, const Environment& environment);

  YokeWrapResult wrap_result() const override;
  // After an Error during the backward no further step is possible.
  YokeStepResult step(const YokeStepArgs& args) override;
  void checkpoint(const YokeCheckpointArgs& args) override;

 private:
  at::Tensor forward(const TorchInputs& inputs) const;  // the loss sum
  void backward(const at::Tensor& loss, double loss_grad, bool reduce);
  void drop_gradients();
  double squared_gradients();
  void reduce_scalars(at::Tensor& scalars) const;

  const YokeModelSummary& summary_;
  const Environment& environment_;
  Parameters parameters_;
  Optimizer optimizer_;
  std::optional<GradientReducer> reducer_;  // empty: one rank, or nothing to train
  bool broken_ = false;
};

}  // namespace yoke::accelerate_compat
