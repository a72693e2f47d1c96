// A model that is trained as Megatron's DistributedDataParallel and its optimizers train it.
#pragma once

#include <memory>

#include "plugins/megatron_compat/gather.hpp"
#include "plugins/megatron_compat/gradients.hpp"
#include "sdk/compat/optimizer.hpp"
#include "sdk/compat/part.hpp"
#include "yoke/backend.hpp"

namespace yoke::megatron_compat {

// The state that all models of one context share. It is created once, in `init`.
struct Environment {
  // Reads the arguments again and creates the communicators. Collective over the world.
  explicit Environment(const YokeInitArgs& args);

  const YokePlan& plan;  // the completed plan
  const YokeHost& host;
  const Config config;
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
  // Sums over all ranks.
  struct Totals {
    compat::BatchTotals batch;
    double squared_norm;  // 0 in an evaluation
  };
  // Runs the batch and reduces its gradients. Returns the sums of this rank.
  compat::RankTotals train(const YokeBatch& batch);
  Totals over_ranks(const compat::RankTotals& own, bool training) const;

  const Environment& environment_;
  const YokeOptimizer& config_;
  const mesh::Pipeline pipeline_;
  const std::unique_ptr<compat::Part> part_;
  const YokeModel& model_;  // that of part_
  const Layout layout_;
  const at::TensorOptions options_;  // options of the parameters
  compat::Parameters parameters_;
  Gradients gradients_;
  compat::Optimizer optimizer_;
  Gather gather_;
  const std::unique_ptr<compat::BatchPass> pass_;
};

}  // namespace yoke::megatron_compat
