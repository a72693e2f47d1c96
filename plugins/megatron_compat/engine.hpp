// A model that is trained as Megatron's DistributedDataParallel and its optimizers train it.
#pragma once

#include "plugins/megatron_compat/optimizer.hpp"
#include "plugins/megatron_compat/pass.hpp"
#include "yoke/backend.hpp"

namespace yoke::megatron_compat {

// The state that all models of one context share. It is created once, in `init`.
struct Environment {
  // Reads the arguments again and creates the communicators. Collective over the world.
  explicit Environment(const YokeInitArgs& args);

  const YokePlan& plan;  // the completed plan
  const YokeHost& host;
  const Settings settings;
  const Comms comms;
};

// One wrapped model on one rank. One thread at a time.
class Engine final : public Wrapped {
 public:
  // Allocates and initialises parameters, gradients and moments. Both arguments must outlive the
  // engine. Collective.
  Engine(const YokeModel& model, const Environment& environment);

  YokeWrapResult wrap_result() const override;
  // Collective. Throws Error(CANCELLED) if the host cancelled the run, Error(INVALID_ARGUMENT) if
  // micro-batches differ in their number of targets and the loss does not allow it, and any error
  // of the model. In all these cases parameters and moments are unchanged.
  YokeStepResult step(const YokeStepArgs& args) override;
  // Passes the shards of this rank to args.visit. A load then gathers the parameters, which is
  // collective.
  void checkpoint(const YokeCheckpointArgs& args) override;

 private:
  // Sums over all ranks of one step.
  struct Totals {
    double loss, targets, squared_norm;
    double uneven;  // micro-batches with another number of targets than the mean
  };
  double loss_grad(const YokeBatch& batch, const YokeMicroBatch& micro) const;
  // Returns whether a micro-batch has another number of targets than the mean.
  bool is_uneven(const YokeBatch& batch, const YokeMicroBatch& micro, double targets) const;
  Totals reduce_totals(const Totals& own, bool training) const;
  void check_even(const Totals& totals) const;
  void show(const YokeCheckpointArgs& args, YokePiece piece, const at::Tensor& values) const;

  const YokeModel& model_;
  const Environment& environment_;
  const YokeOptimizer& config_;
  const Layout layout_;
  const at::TensorOptions options_;  // options of the parameters
  Parameters parameters_;
  Gradients gradients_;
  Optimizer optimizer_;
  Gather gather_;
  const std::vector<RecomputedUnit> units_;
  Pass pass_;
};

}  // namespace yoke::megatron_compat
