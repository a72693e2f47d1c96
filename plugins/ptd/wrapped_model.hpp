// A model wrapped by ptd. It implements wrap_model, step and checkpoint of the contract.
#pragma once

#include <memory>

#include "plugins/ptd/comms.hpp"
#include "plugins/ptd/executor/executor.hpp"
#include "plugins/ptd/mesh.hpp"
#include "plugins/ptd/optim/optimizer.hpp"
#include "plugins/ptd/options.hpp"
#include "plugins/ptd/rank_plan.hpp"
#include "plugins/ptd/state/shard_state.hpp"
#include "sdk/mesh/dtensor/model_on_mesh.hpp"
#include "yoke/torch.hpp"

namespace yoke::ptd {

// Owns everything that a rank keeps for the model. Used by one thread at a time.
class WrappedModel final : public Wrapped {
 public:
  // Collective over the world. All arguments must outlive the wrapped model. Throws
  // Error(FAILED_PRECONDITION) if the host does not attach the model as LibTorch objects, and
  // Error(INVALID_ARGUMENT) if the model's parameters do not have the plan's compute type.
  WrappedModel(const YokeModel& model,
               const YokePlan& plan,
               const PtdOptions& options,
               const Comms& comms,
               const YokeHost& host);

  YokeWrapResult wrap_result() const override;  // bytes that this rank keeps and moves
  YokeStepResult step(const YokeStepArgs& args) override { return executor_->step(args); }
  void checkpoint(const YokeCheckpointArgs& args) override;

 private:
  const YokeModelSummary& summary_;
  const Comms& comms_;
  int rank_;  // rank in the world
  std::vector<ParamCut> cuts_;
  Pipeline pipeline_;
  std::vector<RankPlan> plans_;  // one for each rank of pp
  const RankPlan& own_;          // element of plans_ for this rank
  ShardState state_;
  StepCosts costs_;
  std::unique_ptr<ModelOnMesh> model_on_mesh_;  // outlives the executor; nullptr without tp and cp
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<Executor> executor_;
};

}  // namespace yoke::ptd
