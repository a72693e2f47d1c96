// A model that is trained with DDP: every rank has all of it, and c10d::Reducer averages the
// gradients.
#pragma once

#include <memory>
#include <optional>

#include "plugins/accelerate_compat/ddp/optimizer.hpp"
#include "plugins/accelerate_compat/ddp/parameters.hpp"
#include "plugins/accelerate_compat/ddp/reducer.hpp"
#include "yoke/backend.hpp"

namespace yoke::accelerate_compat {

// The state that all models of one context share. It is created once, in `init`.
struct Environment {
  // Collective over the world. Throws Error(FAILED_PRECONDITION) if there are several ranks and the
  // host's communicators are not c10d::ProcessGroups.
  explicit Environment(const YokeInitArgs& args);

  const YokePlan& plan;  // the completed plan
  const YokeHost& host;
  const DdpOptions options;
  c10d::ProcessGroup* gradients = nullptr;  // owned by the host; NULL if there is one rank
  c10d::ProcessGroup* scalars = nullptr;    // likewise; for loss and number of targets
};

// One wrapped model on one rank. One thread at a time.
class Replica final : public Wrapped {
 public:
  // Allocates and initialises parameters and moments. model and environment must outlive the
  // replica. Collective.
  Replica(const YokeModel& model, const Environment& environment);

  YokeWrapResult wrap_result() const override;
  // Collective. Throws Error(CANCELLED) if the host cancelled the run. After an error during a
  // backward, whose collectives cannot be undone, every further step throws
  // Error(FAILED_PRECONDITION).
  YokeStepResult step(const YokeStepArgs& args) override;
  // Not collective.
  void checkpoint(const YokeCheckpointArgs& args) override;

 private:
  at::Tensor forward(const TorchInputs& inputs) const;  // returns the sum of the losses
  void backward(const at::Tensor& loss, double loss_grad, bool reduce);
  void drop_gradients();
  double squared_gradients();
  void reduce_scalars(at::Tensor& scalars) const;

  const YokeModelSummary& summary_;
  const Environment& environment_;
  Parameters parameters_;
  Optimizer optimizer_;
  std::optional<GradientReducer> reducer_;  // empty if there is one rank, or nothing to train
  bool broken_ = false;                     // whether a backward has failed
};

}  // namespace yoke::accelerate_compat
