// Autograd one block at a time: the graph ends at the block's border, so its gradients are complete
// when its backward returns. No hooks, no change to the modules.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "plugins/ptd/schedule/schedule.hpp"
#include "yoke/torch.hpp"

namespace yoke::ptd {

// Holds the activations of one step. One thread at a time.
class BlockRunner {
 public:
  // The blocks live as long as the runner; blocks before first_trained get no backward.
  BlockRunner(const std::vector<TorchBlock>& blocks, size_t first_trained);

  // inputs: of each micro-batch, alive until end_step. loss_grad: gradient of the loss sum, an fp64
  // scalar on the CPU, or where the losses are: then it is read when the work is done.
  void begin_step(const std::vector<TorchInputs>& inputs, const at::Tensor& loss_grad);
  void end_step();  // drops what is left of the activations

  void forward(const Action& action);
  void recompute(const Action& action);
  // Leaves the gradients of the block's parameters in their .grad.
  void backward(const Action& action);

  // Loss of a micro-batch, summed over its targets; after the forward of the last block.
  const at::Tensor& loss(int micro) const { return micros_[micro].loss; }

 private:
  struct Saved {
    at::Tensor input;   // carry as a leaf; undefined for the first block
    at::Tensor output;  // end of the block's graph
  };
  struct Micro {
    at::Tensor carry;  // between blocks: activations in forward, their gradient in backward
    at::Tensor loss;
    std::vector<Saved> saved;  // by block
  };

  at::Tensor grad_of_loss(const at::Tensor& loss) const;
  at::Tensor run(int block, int micro, const at::Tensor& input, bool with_graph) const;
  at::Tensor input_leaf(int block, const at::Tensor& carry) const;

  const std::vector<TorchBlock>& blocks_;
  int first_trained_;
  const std::vector<TorchInputs>* inputs_ = nullptr;
  at::Tensor loss_grad_;
  std::vector<Micro> micros_;
};

}  // namespace yoke::ptd
