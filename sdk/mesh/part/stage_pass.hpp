// Runs the micro-batches of a step on the blocks of one rank: on distributed tensors, and with the
// messages that the stages of a pipeline exchange.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "sdk/mesh/executor/block_runner.hpp"
#include "sdk/mesh/executor/stage_messages.hpp"
#include "sdk/mesh/part/rank_model.hpp"
#include "sdk/mesh/schedule/block_costs.hpp"
#include "sdk/mesh/schedule/schedule.hpp"

namespace yoke::mesh {

// How a rank computes its blocks.
struct StagePlan {
  Pipeline pipeline;
  // Activations that are computed again, for each rank along pp.
  std::vector<std::vector<RecomputedBlocks>> recomputed;
};

// Returns the steps of all ranks along pp, without anything that concerns data parallelism.
std::vector<StepSpec> compute_steps(const StagePlan& plan, int ranks);

// What an engine does between blocks. Parameters and blocks are those of the part. Both may be
// collective among ranks with the same part, which call them in the same order.
struct StageHooks {
  std::function<void(uint64_t block)> before_block;  // before each forward of the block
  // After the backward of a block, once for each of its trainable parameters. The gradients of a
  // step add up to that of the parameter, this rank's part of it; each is undefined if it is zero.
  std::function<void(int64_t param, const at::Tensor& gradient)> on_gradient;
};

// One thread at a time. Collective over pp, cp and tp.
class StagePass {
 public:
  // The model, the communicators and the host must outlive the pass.
  StagePass(const RankModel& model,
            const StagePlan& plan,
            const ModelComms& comms,
            const YokeHost& host,
            StageHooks hooks);

  // This rank's share of the loss of a step, and the targets that it counts. The shares of all
  // ranks of pp, cp and tp add up to the sum of losses and to the numbers of targets.
  struct Result {
    at::Tensor loss;              // fp64, a scalar on the device of the model
    std::vector<double> targets;  // one number for each micro-batch
  };
  // Returns whether this rank counts targets: one of all ranks that share a batch does.
  bool counts_targets() const;
  // Return the result of a step, without waiting for a device. loss_grads: for each micro-batch
  // what the gradient of the sum of losses is multiplied by. Throw Error(CANCELLED) if the host
  // stops the run, and the error of a block; nothing is kept then. If a message was in flight,
  // every further step throws Error(FAILED_PRECONDITION).
  Result train(const YokeBatch& batch, const std::vector<double>& loss_grads);
  Result evaluate(const YokeBatch& batch);

 private:
  // The number of micro-batches, and whether the step is forward only.
  using Key = std::pair<int, bool>;
  // Returns the mesh of distributed tensors; nullptr if all tensors are plain.
  Mesh* mesh() const { return model_.on_mesh() != nullptr ? &model_.on_mesh()->mesh() : nullptr; }
  const std::vector<Action>& list(int micros, bool forward_only);
  Result run(const YokeBatch& batch, const std::vector<double>& loss_grads, bool forward_only);
  double targets_of(const YokeMicroBatch& micro, const TorchInputs& inputs) const;
  void run(const Action& action);
  void forward(const Action& action);
  void report_gradients(int block);
  void abandon();
  void end_step();

  const RankModel& model_;
  const YokeHost& host_;
  const int rank_;  // along pp
  const std::vector<StepSpec> specs_;
  const StageHooks hooks_;
  const at::Device device_;
  BlockRunner blocks_;
  StageMessages messages_;
  std::map<Key, std::vector<Action>> lists_;
  bool broken_ = false;  // a step failed while a message was in flight

  // These belong to the step in progress.
  std::vector<TorchInputs> inputs_, distributed_;
  Result result_;
};

}  // namespace yoke::mesh
