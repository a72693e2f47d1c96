// Runs autograd one block at a time. Each block has its own graph, so the gradients of a block are
// complete when its backward returns. This needs neither hooks nor changes to the modules.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "sdk/mesh/dtensor/mesh.hpp"
#include "sdk/mesh/schedule/schedule.hpp"
#include "yoke/torch.hpp"

namespace yoke::mesh {

// Holds the activations of one step. Used by one thread at a time.
class BlockRunner {
 public:
  // blocks: those of this rank, in the order of the model; they must outlive the runner.
  // defer_weights: that of the model, or nullptr if it has none. mesh: that of distributed tensors;
  // may be nullptr.
  BlockRunner(std::vector<const TorchBlock*> blocks,
              std::vector<OwnStage> stages,
              TrainedBlocks trained,
              DeferWeights defer_weights,
              Mesh* mesh);

  // inputs, loss_grads: one entry per micro-batch; inputs must stay valid until end_step. A
  // loss_grad is the gradient of a loss sum, an fp64 scalar on the CPU or on the device of the
  // losses. On a device it is read when the work runs, not when it is issued.
  void begin_step(const std::vector<TorchInputs>& inputs, std::vector<at::Tensor> loss_grads);
  // Frees the remaining activations, also after a failure.
  void end_step();

  // The actions of a block. The schedule decides their order.
  void forward(const Action& action);
  void recompute(const Action& action);
  // Leaves gradients in the .grad of the block's parameters. kBackwardInput keeps the products that
  // lead to gradients of weights for backward_weight().
  void backward(const Action& action);
  void backward_weight(const Action& action);

  // What passes between the stages of this rank and those of other ranks: the input of a stage and
  // its output, then the gradient of the output and that of the input. stage: among all stages of
  // the model.
  void put(int stage, int micro, at::Tensor carry);
  at::Tensor take(int stage, int micro);

  // Returns true if the block is the last one of the model.
  bool computes_loss(int block) const;
  // Returns the loss of a micro-batch, summed over its targets. Valid after the forward of the last
  // block of the model.
  const at::Tensor& loss(int micro) const { return micros_[micro].loss; }

 private:
  struct Saved {
    at::Tensor input;     // the carry as a leaf; undefined for the first block
    at::Tensor output;    // output of the block, from which its backward starts
    WeightQueue weights;  // left by BackwardInput
  };
  struct Micro {
    // For each stage, what passes between its blocks: activations, then their gradient. Between two
    // stages of this rank it stays with the one that has computed it.
    std::vector<at::Tensor> carry;
    at::Tensor loss;
    std::vector<Saved> saved;  // one per block
  };

  at::Tensor grad_of_loss(const at::Tensor& loss, int micro) const;
  at::Tensor run(int block, int micro, const at::Tensor& input, bool with_graph) const;
  at::Tensor input_leaf(int block, const at::Tensor& carry) const;
  at::Tensor take_input(int block, Micro& micro) const;
  at::Tensor take_gradient(int block, Micro& micro) const;
  void compute_pending() const;

  const std::vector<const TorchBlock*> blocks_;
  const std::vector<OwnStage> stages_;
  std::vector<size_t> stage_of_block_;  // index into stages_
  const TrainedBlocks trained_;
  const DeferWeights defer_weights_;
  Mesh* const mesh_;
  const std::vector<TorchInputs>* inputs_ = nullptr;
  std::vector<at::Tensor> loss_grads_;
  std::vector<Micro> micros_;
};

}  // namespace yoke::mesh
