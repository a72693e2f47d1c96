#include "plugins/ptd/executor/executor.hpp"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <utility>

#include "plugins/ptd/optim/grad_norm.hpp"
#include "plugins/ptd/schedule/checker.hpp"

namespace yoke::ptd {
namespace {

enum Scalar { kLossSum, kLossWeight, kSquaredNorm, kNumScalars };

}  // namespace

Executor::Executor(Parts parts)
    : parts_(std::move(parts)),
      pool_(parts_.state.params.device()),
      blocks_(*parts_.model.blocks, parts_.spec.first_trained_block()),
      weight_(at::zeros({}, parts_.state.params.options().dtype(at::kDouble))),
      loss_grad_(at::zeros_like(weight_)),
      scalars_(at::zeros({kNumScalars}, weight_.options())) {
  make_units(parts_.params);
  if (parts_.graphs != nullptr) recorded_.emplace(*parts_.graphs);
}

void Executor::make_units(const ModelSpec& params) {
  std::vector<Sink> sink_of_param(params.params.size());
  for (size_t u = 0; u < parts_.state.units.size(); ++u) {
    const FlatLayout& layout = parts_.state.units[u].layout;
    ShardedUnit::Parts unit{{}, parts_.state.param_shard(u), parts_.state.grad_shard(u)};
    for (const FlatLayout::Slot& slot : layout.slots()) {
      sink_of_param[slot.param] = {static_cast<int>(u), unit.params.size()};
      unit.params.push_back((*parts_.model.params)[slot.param]);
    }
    units_.emplace_back(layout, std::move(unit), parts_.spec.shards, pool_);
  }
  for (const std::vector<int>& block : params.blocks) {
    std::vector<Sink>& sinks = sinks_.emplace_back();
    for (int p : block) {
      if (params.params[p].trainable) sinks.push_back(sink_of_param[p]);
    }
  }
}

int64_t Executor::copy_bytes() const {
  int64_t bytes = 0;
  for (const ShardedUnit& unit : units_) bytes += unit.copy_bytes();
  return bytes;
}

const std::vector<Action>& Executor::schedule(int micros, bool forward_only) {
  const Key key{micros, forward_only};
  if (const auto known = schedules_.find(key); known != schedules_.end()) return known->second;
  StepSpec spec = parts_.spec;
  spec.micros = micros;
  spec.forward_only = forward_only;
  std::vector<Action> actions = build_schedule(spec);
  if (const auto faults = check_rank(spec, actions); !faults.empty()) {
    throw Error(YOKE_INTERNAL, "the schedule of a step is wrong: " + faults[0].text);
  }
  return schedules_.emplace(key, std::move(actions)).first->second;
}

YokeStepResult Executor::step(const YokeStepArgs& args) {
  if (broken_) {
    throw Error(YOKE_FAILED_PRECONDITION,
                "a step failed while a collective was on its way; destroy this model and resume "
                "from a checkpoint");
  }
  if (args.batch->num_micros == 0)
    throw Error(YOKE_INVALID_ARGUMENT, "step: the batch has no micro-batch");
  forward_only_ = (args.flags & YOKE_STEP_FORWARD_ONLY) != 0;
  const StepGuard guard(/*with_graph=*/false);  // blocks make their own
  try {
    take_batch(*args.batch);
    if (!forward_only_) parts_.optimizer.begin_step(args.step, args.lr);
    if (recorded_ && !forward_only_) {
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
  // A norm that is not finite is reported as infinity; nothing was updated then.
  if (!forward_only_ && !std::isinf(result_.grad_norm)) parts_.optimizer.commit();
  return result_;
}

void Executor::take_batch(const YokeBatch& batch) {
  inputs_.clear();
  double weight = 0;
  for (uint64_t m = 0; m < batch.num_micros; ++m) {
    inputs_.push_back(borrow(*batch.micros[m]));
    if (parts_.model_on_mesh != nullptr && !parts_.model_on_mesh->is_first()) continue;
    // Counting on a device would wait for it.
    weight +=
        on_stream() ? batch.micros[m]->token_weight : parts_.model.loss_weight(inputs_.back());
  }
  weight_.fill_(weight);
  loss_grad_.fill_(1 / batch.token_weight);
}

void Executor::issue(const std::vector<TorchInputs>& inputs) {
  distributed_ = inputs;
  if (parts_.model_on_mesh != nullptr) {
    for (TorchInputs& micro : distributed_) micro = parts_.model_on_mesh->distribute(micro);
  }
  scalars_.zero_();
  scalars_[kLossWeight].copy_(weight_);
  blocks_.begin_step(distributed_, loss_grad_);
  for (ShardedUnit& unit : units_) unit.begin_step();
  for (const Action& action : schedule(static_cast<int>(inputs.size()), forward_only_)) run(action);
  blocks_.end_step();
}

void Executor::run(const Action& a) {
  at::RecordFunction span(at::RecordScope::USER_SCOPE);  // in traces; costs nothing without one
  if (span.isActive()) span.before(to_string(a));
  switch (a.kind) {
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
      return backward(a);
    case ActionKind::kReduceGrad:
      return units_[a.unit].start_reduce(parts_.comms.reduce_grad);
    case ActionKind::kWaitReduce:
      return units_[a.unit].finish_reduce();
    case ActionKind::kAllReduceGrad:
      return units_[a.unit].start_all_reduce(parts_.comms.all_reduce_grad);
    case ActionKind::kWaitGrad:
      return units_[a.unit].finish_all_reduce();
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
  require_not_cancelled();
  blocks_.forward(action);
  if (action.block + 1 == static_cast<int>(sinks_.size())) {
    scalars_[kLossSum].add_(local_sum(blocks_.loss(action.micro)));
  }
}

void Executor::backward(const Action& action) {
  blocks_.backward(action);
  for (const Sink& sink : sinks_[action.block]) units_[sink.unit].collect_gradient(sink.slot);
}

// One all-reduce for all of them, of the same size in every shard, so that all ranks issue the same
// collectives.
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

// Each logical parameter counts once: replicas hold the same gradients, and the ranks of tp the
// same of what is not cut; the first one speaks for all.
at::Tensor Executor::own_squared_norm() const {
  const at::Tensor& grads = parts_.state.grads;
  if (parts_.comms.tp.rank() == 0) return squared_norm(grads);
  at::Tensor sum = at::zeros({}, scalars_.options());
  for (const FlatSpan& span : parts_.state.spans) {
    if (!span.tp_replicated) sum.add_(squared_norm(grads.narrow(0, span.begin, span.count)));
  }
  return sum;
}

// One all-reduce per step for everything that every rank must know.
void Executor::reduce_scalars(bool with_norm) {
  if (with_norm) {
    for (ShardedUnit& unit : units_) unit.complete_gradients();
    if (parts_.comms.all_reduce_grad.rank() == 0) scalars_[kSquaredNorm].copy_(own_squared_norm());
  }
  if (parts_.comms.world.size() > 1) parts_.comms.world.all_reduce_sum(scalars_).wait();
  if (!on_stream()) read_results();
}

// Waits for a device: at the end of a step, and nowhere else.
void Executor::read_results() {
  await_stream();
  const at::Tensor values = scalars_.cpu();
  const double* v = values.const_data_ptr<double>();
  result_.loss_sum = v[kLossSum];
  result_.loss_weight = v[kLossWeight];
  result_.grad_norm = forward_only_ ? kUnknown : gradient_norm(v[kSquaredNorm]);
}

// Asks instead of waiting, so that a run can be cancelled while a device or a peer is stuck, and
// ends if a repetition does, whose collectives nobody else watches.
void Executor::await_stream() {
  const at::Device device = scalars_.device();
  if (device.is_cpu()) return;
  c10::Event done(device.type());
  done.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  const auto waited = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  while (!done.query()) {
    require_not_cancelled();
    if (longest_wait_ > 0 && recorded_ &&
        waited() > 2 * longest_wait_ + parts_.graphs->patience_seconds) {
      throw Error(
          YOKE_DEADLINE_EXCEEDED,
          "a recorded step did not end: a rank hangs or is lost; ptd.cuda_graph=false tells "
          "in which collective, comm.timeout gives more time");
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  longest_wait_ = std::max(longest_wait_, waited());
}

void Executor::require_not_cancelled() const {
  if (parts_.host.check_cancel(parts_.host.ctx) != 0)
    throw Error(YOKE_CANCELLED, "the step was cancelled");
}

void Executor::update() {
  if (on_stream()) {
    parts_.optimizer.update_with(clip_on_device(scalars_[kSquaredNorm], parts_.clip));
    return;
  }
  if (std::isinf(result_.grad_norm)) return;
  parts_.optimizer.update(clip_scale(parts_.clip, result_.grad_norm));
}

void Executor::abandon_step() {
  blocks_.end_step();
  for (const ShardedUnit& unit : units_) broken_ = broken_ || !unit.idle();
  if (broken_) return;
  for (ShardedUnit& unit : units_) unit.abandon_step();
}

}  // namespace yoke::ptd
