// Each block is an autograd graph of its own: its input is a detached leaf, and its backward starts
// with the gradient that the next block's backward left in Micro::carry. One graph over all blocks
// would need hooks to find out when a unit's gradients are complete, and would keep parameters
// whole for as long as the graph refers to them. Here the schedule knows when gradients are
// complete and when parameters can be freed, because a block's backward is an action of its own.
#include "sdk/mesh/executor/block_runner.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <utility>

#include "sdk/mesh/dtensor/dtensor.hpp"

namespace yoke::mesh {

BlockRunner::BlockRunner(std::vector<const TorchBlock*> blocks,
                         std::vector<OwnStage> stages,
                         TrainedBlocks trained,
                         DeferWeights defer_weights,
                         Mesh* mesh)
    : blocks_(std::move(blocks)),
      stages_(std::move(stages)),
      trained_(trained),
      defer_weights_(defer_weights),
      mesh_(mesh) {
  for (size_t s = 0; s < stages_.size(); ++s) stage_of_block_.resize(stages_[s].end, s);
}

void BlockRunner::begin_step(const std::vector<TorchInputs>& inputs,
                             std::vector<at::Tensor> loss_grads) {
  inputs_ = &inputs;
  loss_grads_ = std::move(loss_grads);
  micros_.resize(inputs.size());
  for (Micro& micro : micros_) {
    micro.carry.resize(stages_.size());
    micro.saved.resize(blocks_.size());
  }
}

void BlockRunner::end_step() {
  for (Micro& micro : micros_) {
    for (at::Tensor& carry : micro.carry) carry.reset();
    micro.loss.reset();
    for (Saved& saved : micro.saved) saved = {};
  }
}

at::Tensor BlockRunner::run(int block, int micro, const at::Tensor& input, bool with_graph) const {
  at::AutoGradMode grad_mode(with_graph);
  const at::Tensor output = blocks_[block]->forward(input, (*inputs_)[micro]);
  compute_pending();
  return output;
}

// Parameters may be freed between two actions, so products with them must be computed before.
void BlockRunner::compute_pending() const {
  if (mesh_ != nullptr) mesh_->pending().compute_all();
}

void BlockRunner::put(int stage, int micro, at::Tensor carry) {
  micros_[micro].carry[position_of(stage, stages_)] = std::move(carry);
}

at::Tensor BlockRunner::take(int stage, int micro) {
  return std::exchange(micros_[micro].carry[position_of(stage, stages_)], at::Tensor());
}

bool BlockRunner::computes_loss(int block) const {
  const OwnStage& stage = stages_[stage_of_block_[block]];
  return stage.to == OwnStage::kNoRank && block + 1 == stage.end;
}

// Returns what the block before this one has computed: in the same stage, in the stage before if
// that is on this rank, or elsewhere, in which case put() has been called.
at::Tensor BlockRunner::take_input(int block, Micro& micro) const {
  size_t s = stage_of_block_[block];
  const bool from_stage_before = block == stages_[s].first && stages_[s].from == stages_[s].rank;
  return std::exchange(micro.carry[from_stage_before ? s - 1 : s], at::Tensor());
}

// Returns the gradient of the block's output in the same way.
at::Tensor BlockRunner::take_gradient(int block, Micro& micro) const {
  size_t s = stage_of_block_[block];
  const bool from_next_stage = block + 1 == stages_[s].end && stages_[s].to == stages_[s].rank;
  return std::exchange(micro.carry[from_next_stage ? s + 1 : s], at::Tensor());
}

// Cuts the graph: returns the carry as a new leaf. It requires a gradient only if an earlier block
// of the model is trained.
at::Tensor BlockRunner::input_leaf(int block, const at::Tensor& carry) const {
  if (!carry.defined()) return {};  // the first block of the model
  at::Tensor leaf = carry.detach();
  leaf.set_requires_grad(block >= trained_.gradient_from);
  return leaf;
}

void BlockRunner::forward(const Action& action) {
  const auto [block, micro] = std::pair(action.block, action.micro);
  Micro& m = micros_[micro];
  const at::Tensor input = input_leaf(block, take_input(block, m));
  const bool all = action.save == Save::kAll;
  const at::Tensor output = run(block, micro, input, all);
  // A later Recompute or Backward starts from these.
  if (action.save != Save::kNothing) m.saved[block] = {input, all ? output : at::Tensor(), {}};
  if (computes_loss(block)) {
    m.loss = output.detach();
  } else {
    m.carry[stage_of_block_[block]] = output;
  }
}

void BlockRunner::recompute(const Action& action) {
  std::vector<Saved>& blocks = micros_[action.micro].saved;
  Saved& saved = blocks[action.block];
  // The first block of what is computed again has kept its input.
  const bool follows = action.block > 0 && blocks[action.block - 1].output.defined();
  if (!saved.input.defined() && follows)
    saved.input = input_leaf(action.block, blocks[action.block - 1].output);
  saved.output = run(action.block, action.micro, saved.input, true);
}

// Returns the gradient of the loss, with which backward starts. A loss without storage is a
// DTensor; its gradient must be a DTensor too, which every rank has as a whole. Its value is not
// read, because on a device that would make the host wait.
at::Tensor BlockRunner::grad_of_loss(const at::Tensor& loss, int micro) const {
  const at::Tensor grad = loss_grads_[micro].to(loss.scalar_type());
  return loss.has_storage() ? grad : from_local(grad, mesh_of(loss), {}, loss.sizes());
}

void BlockRunner::backward(const Action& action) {
  Micro& m = micros_[action.micro];
  const Saved saved = std::exchange(m.saved[action.block], {});
  const bool split = action.kind == ActionKind::kBackwardInput;
  const HostSetting<WeightQueue> scope(split ? defer_weights_ : nullptr,
                                       &m.saved[action.block].weights);
  at::Tensor grad = computes_loss(action.block) ? grad_of_loss(saved.output, action.micro)
                                                : take_gradient(action.block, m);
  if (saved.output.requires_grad()) torch::autograd::backward({saved.output}, {std::move(grad)});
  compute_pending();
  if (!saved.input.defined() || !saved.input.requires_grad()) return;
  at::Tensor& carry = m.carry[stage_of_block_[action.block]];
  carry = saved.input.grad();
  // This gradient is undefined if the output does not depend on the input.
  if (!carry.defined()) carry = at::zeros_like(saved.input);
}

void BlockRunner::backward_weight(const Action& action) {
  micros_[action.micro].saved[action.block].weights.run();
}

}  // namespace yoke::mesh
