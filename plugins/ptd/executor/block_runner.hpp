// Runs autograd one block at a time. Each block has its own graph, so the gradients of a block are
// complete when its backward returns. This needs neither hooks nor changes to the modules.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "plugins/ptd/schedule/schedule.hpp"
#include "yoke/torch.hpp"

namespace yoke::ptd {

// Holds the activations of one step. Used by one thread at a time.
class BlockRunner {
 public:
  // The blocks must outlive the runner. Blocks before first_trained get no backward.
  BlockRunner(const std::vector<TorchBlock>& blocks, size_t first_trained);

  // inputs: one entry per micro-batch; must stay valid until end_step. loss_grad: gradient of the
  // loss sum, an fp64 scalar on the CPU or on the device of the losses. On a device it is read when
  // the work runs, not when it is issued.
  void begin_step(const std::vector<TorchInputs>& inputs, const at::Tensor& loss_grad);
  // Frees the remaining activations, also after a failure.
  void end_step();

  // The three actions of a block. The schedule decides their order.
  void forward(const Action& action);
  void recompute(const Action& action);
  void backward(const Action& action);  // leaves gradients in the .grad of the block's parameters

  // Returns the loss of a micro-batch, summed over its targets. Valid after the forward of the last
  // block.
  const at::Tensor& loss(int micro) const { return micros_[micro].loss; }

 private:
  struct Saved {
    at::Tensor input;   // the carry as a leaf; undefined for the first block
    at::Tensor output;  // output of the block, from which its backward starts
  };
  struct Micro {
    at::Tensor carry;  // activations between blocks in forward, then their gradient
    at::Tensor loss;
    std::vector<Saved> saved;  // one per block
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
