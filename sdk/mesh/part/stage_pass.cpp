// The list of actions is built and checked like that of any step, but has no units: an engine that
// owns its buffers decides itself when it gathers and reduces them, in the hooks. Actions of
// collectives over all ranks, which end a list, are left to the engine as well.
#include "sdk/mesh/part/stage_pass.hpp"

#include <ATen/ATen.h>

#include "sdk/mesh/schedule/checked_lists.hpp"
#include "yoke/error.hpp"

namespace yoke::mesh {
namespace {

std::vector<const TorchBlock*> blocks_of(const RankModel& model) {
  std::vector<const TorchBlock*> blocks;
  for (const int b : model.blocks()) blocks.push_back(&(*model.torch().blocks)[b]);
  return blocks;
}

}  // namespace

std::vector<StepSpec> compute_steps(const StagePlan& plan, int ranks) {
  std::vector<StepSpec> specs(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    StepSpec& spec = specs[rank];
    spec.pipeline = plan.pipeline.spec_of(rank);
    spec.blocks.resize(plan.pipeline.stages.blocks_of(rank).size());
    spec.recomputed = plan.recomputed[rank];
    if (!spec.recomputed.empty()) spec.recompute = Recompute::kUnits;
  }
  return specs;
}

StagePass::StagePass(const RankModel& model,
                     const StagePlan& plan,
                     const ModelComms& comms,
                     const YokeHost& host,
                     StageHooks hooks)
    : model_(model),
      host_(host),
      rank_(comms.pp_rank()),
      specs_(compute_steps(plan, comms.pp_size())),
      hooks_(std::move(hooks)),
      device_(model.torch().params->front().device()),
      blocks_(blocks_of(model),
              specs_[rank_].stages(),
              specs_[rank_].trained_blocks(),
              defer_weights_of(model.torch()),
              mesh()),
      messages_(comms, rank_, mesh(), device_) {}

bool StagePass::counts_targets() const {
  const bool is_first = model_.on_mesh() == nullptr || model_.on_mesh()->is_first();
  return is_first && blocks_.computes_loss(static_cast<int>(model_.blocks().size()) - 1);
}

StagePass::Result StagePass::train(const YokeBatch& batch, const std::vector<double>& loss_grads) {
  return run(batch, loss_grads, false);
}

StagePass::Result StagePass::evaluate(const YokeBatch& batch) {
  return run(batch, std::vector<double>(batch.num_micros, 0.0), true);
}

// Every rank checks the lists of all ranks, because its own list alone does not say whether its
// messages have partners.
const std::vector<Action>& StagePass::list(int micros, bool forward_only) {
  const Key key{micros, forward_only};
  if (const auto known = lists_.find(key); known != lists_.end()) return known->second;
  std::vector<StepSpec> specs = specs_;
  for (StepSpec& spec : specs) {
    spec.micros = micros;
    spec.forward_only = forward_only;
  }
  return lists_.emplace(key, std::move(checked_lists(specs)[rank_])).first->second;
}

// Counting on a device would make the host wait, so the count that the host passed is used there.
double StagePass::targets_of(const YokeMicroBatch& micro, const TorchInputs& inputs) const {
  if (!counts_targets()) return 0;
  return host_.stream != nullptr ? micro.token_weight : model_.torch().loss_weight(inputs);
}

StagePass::Result StagePass::run(const YokeBatch& batch,
                                 const std::vector<double>& loss_grads,
                                 bool forward_only) {
  if (broken_) {
    throw Error(YOKE_FAILED_PRECONDITION,
                "an earlier step failed while a message between stages was in flight; destroy this "
                "model and resume from a checkpoint");
  }
  inputs_.clear();
  const auto options = at::TensorOptions(device_).dtype(at::kDouble);
  result_ = {at::zeros({}, options), {}};
  std::vector<at::Tensor> grads;
  for (uint64_t m = 0; m < batch.num_micros; ++m) {
    inputs_.push_back(borrow(*batch.micros[m]));
    result_.targets.push_back(targets_of(*batch.micros[m], inputs_.back()));
    grads.push_back(at::full({}, loss_grads[m], options));
  }
  distributed_ = inputs_;
  if (model_.on_mesh() != nullptr) {
    for (TorchInputs& micro : distributed_) micro = model_.on_mesh()->distribute(micro);
  }
  try {
    blocks_.begin_step(distributed_, std::move(grads));
    messages_.begin_step(inputs_, specs_[rank_].stages());
    for (const Action& action : list(static_cast<int>(batch.num_micros), forward_only)) run(action);
    end_step();
  } catch (...) {
    abandon();
    throw;
  }
  return result_;
}

void StagePass::run(const Action& a) {
  if (info_of(a.kind).message) return messages_.run(a, blocks_);
  switch (a.kind) {
    case ActionKind::kForward:
      return forward(a);
    case ActionKind::kRecompute:
      return blocks_.recompute(a);
    case ActionKind::kBackward:
      blocks_.backward(a);
      return report_gradients(a.block);
    case ActionKind::kBackwardInput:
      return blocks_.backward(a);
    case ActionKind::kBackwardWeight:
      blocks_.backward_weight(a);
      return report_gradients(a.block);
    default:  // the engine's: the norm and the update
      return;
  }
}

void StagePass::forward(const Action& a) {
  if (host_.check_cancel(host_.ctx) != 0) throw Error(YOKE_CANCELLED, "the step was cancelled");
  hooks_.before_block(a.block);
  blocks_.forward(a);
  if (!blocks_.computes_loss(a.block)) return;
  result_.loss.add_(local_sum(blocks_.loss(a.micro)));
}

void StagePass::report_gradients(int block) {
  const YokeBlock& own = *model_.summary().blocks[block];
  for (uint64_t i = 0; i < own.num_params; ++i) {
    const int64_t param = own.params[i];
    if (model_.summary().params[param]->trainable == 0) continue;
    const at::Tensor& leaf = model_.leaf(param);
    const at::Tensor grad = local_gradient(leaf, leaf.grad());
    leaf.mutable_grad().reset();
    hooks_.on_gradient(param, grad);
  }
}

void StagePass::abandon() {
  end_step();
  for (uint64_t p = 0; p < model_.summary().num_params; ++p)
    model_.leaf(static_cast<int64_t>(p)).mutable_grad().reset();
  broken_ = !messages_.idle();
  if (!broken_) messages_.abandon_step();
}

// Frees activations, and inputs, which are borrowed for the call.
void StagePass::end_step() {
  blocks_.end_step();
  inputs_.clear();
  distributed_.clear();
}

}  // namespace yoke::mesh
