// The engine is a loop over the schedule's actions, and run() is one switch: each action is one
// call of a unit, of the block runner or of the optimizer. There is no code for a particular
// strategy. FSDP, DDP, accumulation and checkpointing differ only in the list of actions, which the
// checker has approved before the first use.
//
// The same code runs in two modes. On the CPU every action is done when run() returns. With a
// stream (a GPU) actions only issue work: wait() of a collective makes the stream wait, clip and
// update read their numbers from device memory, and the host waits once, at the end of the step.
// Therefore no function that issue() calls may read a tensor's value when on_stream() is true.
#include "plugins/ptd/executor/executor.hpp"

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "plugins/ptd/optim/grad_norm.hpp"
#include "sdk/mesh/schedule/checked_lists.hpp"

namespace yoke::ptd {
namespace {

// Indices into scalars_, which one all-reduce per step sums over all ranks.
enum Scalar { kLossSum, kNumTargets, kSquaredNorm, kNumScalars };

std::vector<const TorchBlock*> own_blocks(const TorchModel& model, const std::vector<int>& own) {
  std::vector<const TorchBlock*> blocks;
  for (const int b : own) blocks.push_back(&(*model.blocks)[b]);
  return blocks;
}

}  // namespace

Executor::Executor(Parts parts)
    : parts_(std::move(parts)),
      pool_(parts_.state.params.device()),
      blocks_(own_blocks(parts_.model, parts_.blocks),
              own_spec().stages(),
              own_spec().trained_blocks(),
              defer_weights_of(parts_.model),
              mesh()),
      messages_(parts_.comms, parts_.rank, mesh(), parts_.state.params.device()),
      num_targets_(at::zeros({}, parts_.state.params.options().dtype(at::kDouble))),
      loss_grad_(at::zeros_like(num_targets_)),
      scalars_(at::zeros({kNumScalars}, num_targets_.options())),
      results_(at::zeros({kNumScalars},
                         scalars_.options().device(at::kCPU).pinned_memory(scalars_.is_cuda()))) {
  make_units(parts_.params);
  if (parts_.model.params->front().scalar_type() == at::kHalf)
    device_scale_ = at::ones_like(num_targets_);
  if (own_spec().exact_sums) {
    param_squares_.emplace(parts_.params, parts_.state);
    scalars_ = at::zeros({kNumScalars + param_squares_->size()}, scalars_.options());
  }
  if (parts_.graphs != nullptr) recorded_.emplace(*parts_.graphs);
}

// Makes the units and, for each block, the sinks of its parameters. Two ranks of a pipeline that
// share a tied parameter each add up the gradients of their own block. With exact sums a rank that
// has both blocks must not mix the two sums either.
void Executor::make_units(const ModelSpec& params) {
  std::vector<Sink> sink_of_param(params.params.size());
  for (size_t u = 0; u < parts_.state.units.size(); ++u) {
    const FlatLayout& layout = parts_.state.units[u].layout;
    ShardedUnit::Parts unit{.params = {},
                            .param_shard = parts_.state.param_shard(u),
                            .grad_shard = parts_.state.grad_shard(u),
                            .copy = parts_.state.copy_shard(u),
                            .shard = parts_.state.shard,
                            .fp8 = own_spec().units[u].fp8_bytes > 0 ? parts_.fp8 : nullptr};
    for (const FlatLayout::Slot& slot : layout.slots()) {
      sink_of_param[slot.param] = {static_cast<int>(u), unit.params.size()};
      unit.params.push_back((*parts_.model.params)[slot.param]);
    }
    units_.emplace_back(layout, std::move(unit), own_spec().shards, pool_);
  }
  for (ShardedUnit& unit : units_) {
    if (unit.fp8() != nullptr) fp8_shards_.push_back(unit.fp8());
  }
  std::vector<bool> used(params.params.size(), false);
  for (const std::vector<int>& block : params.blocks) {
    std::vector<Sink>& sinks = sinks_.emplace_back();
    for (int p : block) {
      if (!params.params[p].trainable) continue;
      Sink& sink = sinks.emplace_back(sink_of_param[p]);
      sink.second = own_spec().exact_sums && used[p];
      if (sink.second) units_[sink.unit].add_second_gradient(sink.slot);
      used[p] = true;
    }
  }
}

int64_t Executor::copy_bytes() const {
  int64_t bytes = 0;
  for (const ShardedUnit& unit : units_) bytes += unit.copy_bytes();
  return bytes;
}

int64_t Executor::second_gradient_bytes() const {
  int64_t bytes = 0;
  for (const ShardedUnit& unit : units_) bytes += unit.second_gradient_bytes();
  return bytes;
}

// Returns the checked action list for a number of micro-batches. Each list is built once and kept.
// Every rank checks the lists of all ranks along pp, because its own list alone does not say
// whether its messages have partners.
const std::vector<Action>& Executor::schedule(int micros, bool forward_only) {
  const Key key{micros, forward_only};
  if (const auto known = schedules_.find(key); known != schedules_.end()) return known->second;
  std::vector<StepSpec> specs = parts_.specs;
  for (StepSpec& spec : specs) {
    spec.micros = micros;
    spec.forward_only = forward_only;
  }
  return schedules_.emplace(key, std::move(checked_lists(specs)[parts_.rank])).first->second;
}

const std::vector<Action>& Executor::check(int micros) {
  schedule(micros, true);
  return schedule(micros, false);
}

YokeStepResult Executor::step(const YokeStepArgs& args) {
  if (broken_) {
    throw Error(YOKE_FAILED_PRECONDITION,
                "an earlier step failed while a collective was in flight; destroy this model and "
                "resume from a checkpoint");
  }
  if (args.batch->num_micros == 0)
    throw Error(YOKE_INVALID_ARGUMENT, "step: the batch has no micro-batch");
  forward_only_ = (args.flags & YOKE_STEP_FORWARD_ONLY) != 0;
  const StepGuard guard(/*with_graph=*/false);  // each block builds a graph of its own
  try {
    take_batch(args);
    if (parts_.state.copies.defined() && std::exchange(copies_are_stale_, false))
      at::Tensor(parts_.state.copies).copy_(parts_.state.params);
    // Step number and learning rate change with every step, so they are written outside of the
    // recorded graph.
    if (!forward_only_) parts_.optimizer.begin_step(args.step, args.lr);
    if (recorded_ && !forward_only_) {
      // Memory that the graph uses must not be freed between its replays.
      const auto again = [this](const std::vector<TorchInputs>& inputs) { issue(inputs); };
      recorded_->run(inputs_, again, [this] { pool_.keep_all(); });
    } else {
      issue(inputs_);
    }
    if (on_stream()) read_results();
  } catch (...) {
    abandon_step();
    throw;
  }
  result_ = step_result(args, result_.loss_sum, result_.loss_weight, result_.grad_norm);
  if (!forward_only_ && result_.skipped == 0) parts_.optimizer.commit();
  return result_;
}

// Returns true if the last block of the model is on this rank.
bool Executor::computes_loss() const {
  return blocks_.computes_loss(static_cast<int>(sinks_.size()) - 1);
}

// Borrows the inputs and counts their targets. The ranks of pp, cp and tp share a batch, so only
// one of them counts: the first along cp and tp of those that compute the loss. If no rank did, the
// host would find that the targets of the step are not those of the batch.
void Executor::take_batch(const YokeStepArgs& args) {
  const YokeBatch& batch = *args.batch;
  inputs_.clear();
  double targets = 0;
  for (uint64_t m = 0; m < batch.num_micros; ++m) {
    inputs_.push_back(borrow(*batch.micros[m]));
    if (parts_.model_on_mesh != nullptr && !parts_.model_on_mesh->is_first()) continue;
    if (!computes_loss()) continue;
    // Counting on a device would make the host wait, so the count that the host passed is used
    // there.
    targets +=
        on_stream() ? batch.micros[m]->token_weight : parts_.model.loss_weight(inputs_.back());
  }
  num_targets_.fill_(targets);
  loss_scale_ = forward_only_ ? 1 : yoke_loss_scale(&args);
  if (device_scale_.defined()) device_scale_.fill_(loss_scale_);
  loss_grad_.fill_(loss_scale_ / batch.token_weight);
}

// Issues all the work of a step; a graph records exactly this work. The step number, the learning
// rate, the loss scale and the batch are in tensors that were written before.
void Executor::issue(const std::vector<TorchInputs>& inputs) {
  distributed_ = inputs;
  if (parts_.model_on_mesh != nullptr) {
    for (TorchInputs& micro : distributed_) micro = parts_.model_on_mesh->distribute(micro);
  }
  const auto micros = static_cast<int>(inputs.size());
  const KeptRoundings kept(parts_.fp8, own_spec().keeps_roundings(micros, forward_only_));
  scalars_.zero_();
  scalars_[kNumTargets].copy_(num_targets_);
  blocks_.begin_step(distributed_, std::vector<at::Tensor>(inputs.size(), loss_grad_));
  messages_.begin_step(inputs, own_spec().stages());
  for (ShardedUnit& unit : units_) unit.begin_step();
  for (const Action& action : schedule(micros, forward_only_)) run(action);
  blocks_.end_step();
}

void Executor::run(const Action& a) {
  // Marks the action in profiler traces. Costs nothing without a profiler.
  at::RecordFunction span(at::RecordScope::USER_SCOPE);
  if (span.isActive()) span.before(to_string(a));
  switch (a.kind) {
    case ActionKind::kReduceScales:
      return round_shards(fp8_shards_, parts_.comms.unshard);
    case ActionKind::kUnshard:
      return units_[a.unit].start_unshard(parts_.comms.unshard);
    case ActionKind::kWaitUnshard:
      return units_[a.unit].finish_unshard();
    case ActionKind::kReshard:
      return units_[a.unit].reshard();
    case ActionKind::kForward:
      return forward(a);
    case ActionKind::kRecompute:
      return blocks_.recompute(a);
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
    case ActionKind::kBackwardWeight:
      return backward(a);
    case ActionKind::kSendCarry:
    case ActionKind::kSendCarryGrad:
    case ActionKind::kReceiveCarry:
    case ActionKind::kReceiveCarryGrad:
    case ActionKind::kWaitCarry:
    case ActionKind::kWaitCarryGrad:
    case ActionKind::kFreeCarry:
    case ActionKind::kFreeCarryGrad:
      return messages_.run(a, blocks_);
    case ActionKind::kReduceGrad:
      return units_[a.unit].start_reduce(parts_.comms.reduce_grad);
    case ActionKind::kWaitReduce:
      return units_[a.unit].finish_reduce();
    case ActionKind::kAllReduceGrad:
      return units_[a.unit].start_all_reduce(parts_.comms.all_reduce_grad);
    case ActionKind::kWaitGrad:
      return units_[a.unit].finish_all_reduce();
    case ActionKind::kExchangeTied:
      return exchange_tied(a);
    case ActionKind::kReducePartialGrads:
      return reduce_partial_grads();
    case ActionKind::kReduceLoss:
      return reduce_scalars(false);
    case ActionKind::kReduceScalars:
      return reduce_scalars(true);
    case ActionKind::kUpdate:
      return update();
  }
}

void Executor::forward(const Action& action) {
  // Checking once per block is often enough, because a cancellation need not take effect at once.
  require_not_cancelled();
  blocks_.forward(action);
  if (blocks_.computes_loss(action.block)) {
    scalars_[kLossSum].add_(local_sum(blocks_.loss(action.micro)));
  }
}

void Executor::backward(const Action& action) {
  sums_.block = action.block;
  const HostSetting<GradientSums> scope(add_gradients_to_of(parts_.model), &sums_);
  if (action.kind == ActionKind::kBackwardWeight) {
    blocks_.backward_weight(action);
  } else {
    blocks_.backward(action);
  }
  for (const Sink& sink : sinks_[action.block])
    units_[sink.unit].collect_gradient(sink.slot, sink.second);
}

// A distributed tensor has no sum: that of its local part has another shape.
GradientSums::Sum* Executor::Sums::of(const at::Tensor& weight) {
  for (const Sink& sink : executor.sinks_[block]) {
    ShardedUnit& unit = executor.units_[sink.unit];
    if (weight.has_storage() && unit.has(sink.slot, weight))
      return &unit.gradient_sum(sink.slot, sink.second);
  }
  return nullptr;
}

// Both ranks add the other's gradients to their own, and then make the same update. Sending the sum
// of one rank to the other would take as long.
void Executor::exchange_tied(const Action& a) {
  units_[a.unit].complete_gradients();
  parts_.comms.tied.add_from(parts_.state.grad_shard(a.unit), a.peer);
}

// Under sequence parallelism each rank of tp has processed a part of the sequence, so the gradients
// of tp-replicated parameters (norms) are partial sums. They are copied into one tensor and summed
// by one all-reduce per step; one per parameter would be many small collectives. The tensor has
// room for the most tp-replicated elements that any shard has, so that all ranks of the world issue
// collectives of the same size.
void Executor::reduce_partial_grads() {
  for (ShardedUnit& unit : units_) unit.complete_gradients();
  const ShardState& state = parts_.state;
  if (state.most_tp_replicated == 0) return;
  const std::vector<at::Tensor> parts = state.tp_replicated_parts(state.grads);
  const at::Tensor all = at::zeros({state.most_tp_replicated}, state.grads.options());
  int64_t end = 0;
  std::vector<at::Tensor> copies;
  for (const at::Tensor& part : parts) {
    copies.push_back(all.narrow(0, end, part.numel()).copy_(part));
    end += part.numel();
  }
  parts_.comms.reduce_partial_grads.all_reduce_sum(all).wait();
  for (size_t i = 0; i < parts.size(); ++i) parts[i].copy_(copies[i]);
}

// Sums all scalars that every rank needs with one all-reduce per step. Three collectives of one
// number each would cost three times the latency.
void Executor::reduce_scalars(bool with_norm) {
  const at::Tensor squares = scalars_.slice(0, kNumScalars);  // empty unless sums are exact
  if (with_norm) {
    for (ShardedUnit& unit : units_) unit.complete_gradients();
    // All replicas have the same gradients, so only the first replica counts them.
    if (parts_.comms.all_reduce_grad.rank() == 0) {
      if (param_squares_) {
        param_squares_->write(squares);
      } else {
        scalars_[kSquaredNorm].copy_(own_squared_norm(parts_.state, parts_.comms.tp.rank()));
      }
    }
  }
  if (parts_.comms.world.size() > 1) parts_.comms.world.all_reduce_sum(scalars_).wait();
  // Every rank of every pipeline adds the same numbers in the same order.
  if (with_norm && param_squares_) scalars_[kSquaredNorm].copy_(sum_in_order(squares));
  results_.copy_(scalars_.slice(0, 0, kNumScalars), /*non_blocking=*/true);
  if (!on_stream()) read_results();
}

// Reads the scalars on the host. On a device this is the only place that waits, at the end of a
// step. On the CPU it runs before the update, which needs the norm.
void Executor::read_results() {
  stream_wait_.wait(work_of_stream(scalars_.device()),
                    recorded_ ? std::optional(parts_.graphs->timeout_seconds) : std::nullopt);
  const double* v = results_.const_data_ptr<double>();
  result_.loss_sum = v[kLossSum];
  result_.loss_weight = v[kNumTargets];
  result_.grad_norm = forward_only_ ? kUnknown : gradient_norm(v[kSquaredNorm]) / loss_scale_;
}

void Executor::require_not_cancelled() const {
  if (parts_.host.check_cancel(parts_.host.ctx) != 0)
    throw Error(YOKE_CANCELLED, "the step was cancelled");
}

// The update runs in one of two ways. On the CPU the norm is known, so the function returns early
// if it is not finite. On a stream the norm is still being computed: divisor and skip flag are
// computed on the device as well, so nothing waits and the update can be recorded in a graph.
void Executor::update() {
  if (on_stream())
    return parts_.optimizer.update_with(
        clip_on_device(scalars_[kSquaredNorm], parts_.clip, device_scale_));
  if (std::isinf(result_.grad_norm)) return;
  parts_.optimizer.update(clip_scale(parts_.clip, result_.grad_norm) / loss_scale_);
}

// Frees what a failed step still holds. If a collective is in flight, its buffers cannot be freed
// or reused, and other ranks may be at a different collective, so the model accepts no further
// step.
void Executor::abandon_step() {
  copies_are_stale_ = true;  // the update may have been interrupted
  blocks_.end_step();
  broken_ = broken_ || !messages_.idle();
  for (const ShardedUnit& unit : units_) broken_ = broken_ || !unit.idle();
  if (broken_) return;
  messages_.abandon_step();
  for (ShardedUnit& unit : units_) unit.abandon_step();
}

}  // namespace yoke::ptd
