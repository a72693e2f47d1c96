// Each block is an autograd graph of its own: its input is a detached leaf, and its backward starts
// with the gradient that the next block's backward left in Micro::carry. One graph over all blocks
// would need hooks to find out when a unit's gradients are complete, and would keep parameters
// whole for as long as the graph refers to them. Here the schedule knows when gradients are
// complete and when parameters can be freed, because a block's backward is an action of its own.
#include "plugins/ptd/executor/block_runner.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <utility>

namespace yoke::ptd {

BlockRunner::BlockRunner(const std::vector<TorchBlock>& blocks, size_t first_trained)
    : blocks_(blocks), first_trained_(static_cast<int>(first_trained)) {}

void BlockRunner::begin_step(const std::vector<TorchInputs>& inputs, const at::Tensor& loss_grad) {
  inputs_ = &inputs;
  loss_grad_ = loss_grad;
  micros_.resize(inputs.size());
  for (Micro& micro : micros_) micro.saved.resize(blocks_.size());
}

void BlockRunner::end_step() {
  for (Micro& micro : micros_) {
    micro.carry.reset();
    micro.loss.reset();
    for (Saved& saved : micro.saved) saved = {};
  }
}

at::Tensor BlockRunner::run(int block, int micro, const at::Tensor& input, bool with_graph) const {
  at::AutoGradMode grad_mode(with_graph);
  return blocks_[block].forward(input, (*inputs_)[micro]);
}

// Cuts the graph: returns the carry as a new leaf. It requires a gradient only if an earlier block
// is trained.
at::Tensor BlockRunner::input_leaf(int block, const at::Tensor& carry) const {
  if (block == 0) return {};
  at::Tensor leaf = carry.detach();
  leaf.set_requires_grad(block > first_trained_);
  return leaf;
}

void BlockRunner::forward(const Action& action) {
  const auto [block, micro] = std::pair(action.block, action.micro);
  Micro& m = micros_[micro];
  const at::Tensor input = input_leaf(block, m.carry);
  const at::Tensor output = run(block, micro, input, action.save);
  // A later Recompute or Backward starts from these.
  if (block >= first_trained_) m.saved[block] = {input, action.save ? output : at::Tensor()};
  if (block + 1 == static_cast<int>(blocks_.size())) {
    m.loss = output.detach();
    m.carry.reset();
  } else {
    m.carry = output;
  }
}

void BlockRunner::recompute(const Action& action) {
  Saved& saved = micros_[action.micro].saved[action.block];
  saved.output = run(action.block, action.micro, saved.input, true);
}

// Returns the gradient of the loss, with which backward starts. A loss without storage is a
// DTensor; its gradient must be a DTensor too, and full_like makes one. DTensors exist only on the
// CPU, where item() does not wait.
at::Tensor BlockRunner::grad_of_loss(const at::Tensor& loss) const {
  return loss.has_storage() ? loss_grad_.to(loss.scalar_type())
                            : at::full_like(loss, loss_grad_.item<double>());
}

void BlockRunner::backward(const Action& action) {
  Micro& m = micros_[action.micro];
  const Saved saved = std::exchange(m.saved[action.block], {});
  const bool last = action.block + 1 == static_cast<int>(blocks_.size());
  at::Tensor grad = last ? grad_of_loss(saved.output) : std::exchange(m.carry, at::Tensor());
  if (saved.output.requires_grad()) torch::autograd::backward({saved.output}, {std::move(grad)});
  if (!saved.input.defined() || !saved.input.requires_grad()) return;
  m.carry = saved.input.grad();
  // This gradient is undefined if the output does not depend on the input.
  if (!m.carry.defined()) m.carry = at::zeros_like(saved.input);
}

}  // namespace yoke::ptd
