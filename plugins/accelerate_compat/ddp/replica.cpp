// One step under DDP.
//
//   for each micro-batch: forward of all blocks, then one backward through the whole graph; the
//                         reducer averages gradients during the last one (or during each)
//   reduce_scalars:       one all-reduce of loss and number of targets
//   update:               clip by the global norm, then AdamW or SGD on every rank
//
// Unlike other backends, this one does not run the backward block by block: c10d::Reducer attaches
// its hooks to the leaves of one graph and expects one backward through it.
#include "plugins/accelerate_compat/ddp/replica.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "plugins/accelerate_compat/ddp/checkpoint.hpp"
#include "sdk/compat/activations.hpp"
#include "yoke/text.hpp"

namespace yoke::accelerate_compat {
namespace {

enum Scalar { kLossSum, kLossWeight, kNumScalars };

// Returns the sum of the squares of a gradient in fp64. Each row is summed in fp32, for which it is
// short enough, or in fp64 if the gradient is fp64. The sums of the rows are then added in fp64.
at::Tensor squared_norm(const at::Tensor& grad) {
  const at::ScalarType wide = grad.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor rows = grad.dim() < 2 ? grad.reshape({1, -1}) : grad.flatten(0, -2);
  const at::Tensor norms =
      at::linalg_vector_norm(rows, 2, at::IntArrayRef{1}, false, wide).to(at::kDouble);
  return at::dot(norms, norms);
}

// Creates a communicator of the host and returns its process group. Collective.
c10d::ProcessGroup* group(const YokeHost& host, uint32_t axes, const char* purpose) {
  const YokeHeader* service =
      host.get_service(host.ctx, "yoke.collectives/1", offsetof(YokeCollectives, send));
  if (service == nullptr) {
    throw Error(YOKE_FAILED_PRECONDITION,
                "accelerate_compat needs the host's service yoke.collectives/1 for more than one "
                "rank; this host has none");
  }
  const auto& collectives = *reinterpret_cast<const YokeCollectives*>(service);
  YokeComm* comm = nullptr;
  call(
      [&](YokeError* err) { return collectives.comm(collectives.ctx, axes, purpose, &comm, err); });
  if (void* native = collectives.native(comm, "c10d::ProcessGroup"))
    return static_cast<c10d::ProcessGroup*>(native);
  throw Error(YOKE_FAILED_PRECONDITION,
              "DDP needs communicators that are c10d::ProcessGroups; this host's are not");
}

}  // namespace

Environment::Environment(const YokeInitArgs& args)
    : plan(*args.plan), host(*args.host), options(Options(args.options, args.num_options)) {
  if (plan.world_size == 1) return;
  gradients = group(host, YOKE_AXIS_BIT(YOKE_DP_REPLICATE), "reduce");
  scalars = group(host, YOKE_ALL_AXES, "scalars");
}

Replica::Replica(const YokeModel& model, const Environment& environment)
    : summary_(*model.summary),
      environment_(environment),
      parameters_(model, scalar_type(environment.plan.param_dtype)),
      optimizer_(*environment.plan.optimizer, parameters_) {
  bool any_trained = false;
  for (const Parameter& p : parameters_.all()) any_trained |= p.info->trainable != 0;
  if (environment.gradients != nullptr && any_trained)
    reducer_.emplace(parameters_, environment.options, *environment.gradients);
  const YokeHost& host = environment.host;
  if (host.rank != 0) return;
  const int32_t ranks = environment.plan.world_size;
  const std::string line =
      ranks == 1 ? "accelerate_compat: one rank"
                 : concat("accelerate_compat: DDP by c10d::Reducer over ", ranks, " ranks");
  host.log(host.ctx, YOKE_LOG_INFO, view(line));
}

YokeWrapResult Replica::wrap_result() const {
  int64_t trained = 0;
  for (const Parameter& p : parameters_.all())
    trained += p.info->trainable != 0 ? static_cast<int64_t>(p.memory.nbytes()) : 0;
  const YokePlan& plan = environment_.plan;
  YokeWrapResult result{};
  result.param_bytes = parameters_.bytes();
  result.optimizer_bytes = optimizer_.bytes();
  const bool twice = reducer_ && !environment_.options.gradient_as_bucket_view;
  result.grad_bytes = twice ? 2 * trained : trained;
  result.activation_bytes = compat::activation_bytes(summary_, {}, plan.micro_batch);
  const int64_t micros = plan.global_batch / (plan.micro_batch * plan.world_size);
  if (reducer_)
    result.axis_bytes[YOKE_DP_REPLICATE] =
        trained * (environment_.options.sync_each_batch ? micros : 1);
  return result;
}

YokeStepResult Replica::step(const YokeStepArgs& args) {
  const YokeBatch& batch = *args.batch;
  const bool training = (args.flags & YOKE_STEP_FORWARD_ONLY) == 0;
  if (batch.num_micros == 0)
    throw Error(YOKE_INVALID_ARGUMENT, "step: the batch has no micro-batch");
  if (broken_) {
    throw Error(YOKE_FAILED_PRECONDITION,
                "a step failed during its backward; destroy this model and resume from a "
                "checkpoint");
  }
  const StepGuard guard(training);
  if (training) drop_gradients();
  // The loss of a run is the mean over all targets of the batch. The reducer averages over the
  // ranks, so multiplying by their number turns its average back into a sum.
  const double scale = yoke_loss_scale(&args);
  const double loss_grad = scale * environment_.plan.world_size / batch.token_weight;
  const at::Tensor& memory = parameters_.all().front().memory;
  at::Tensor scalars = at::zeros({kNumScalars}, memory.options().dtype(at::kDouble));
  for (uint64_t m = 0; m < batch.num_micros; ++m) {
    const TorchInputs inputs = borrow(*batch.micros[m]);
    const at::Tensor loss = forward(inputs);
    scalars[kLossSum] += loss.detach();
    // On a CUDA device, counting the targets would wait for the device, so the batch's own count is
    // used.
    scalars[kLossWeight] +=
        memory.is_cpu() ? parameters_.model().loss_weight(inputs) : batch.micros[m]->token_weight;
    const bool last = m + 1 == batch.num_micros;
    if (training) backward(loss, loss_grad, last || environment_.options.sync_each_batch);
  }
  const at::NoGradGuard no_graph;
  reduce_scalars(scalars);
  scalars = scalars.cpu();

  const double norm = training ? yoke::gradient_norm(squared_gradients()) / scale : kUnknown;
  const YokeStepResult result = step_result(
      args, scalars[kLossSum].item<double>(), scalars[kLossWeight].item<double>(), norm);
  if (training && result.skipped == 0)
    optimizer_.update(
        args.step, args.lr, clip_scale(environment_.plan.optimizer->clip, norm) / scale);
  return result;
}

at::Tensor Replica::forward(const TorchInputs& inputs) const {
  const YokeHost& host = environment_.host;
  at::Tensor carry;
  for (const TorchBlock& block : *parameters_.model().blocks) {
    if (host.check_cancel(host.ctx) != 0) throw Error(YOKE_CANCELLED, "the step was cancelled");
    carry = block.forward(carry, inputs);
  }
  return carry;
}

// broken_ stays set if the backward throws: ranks may then have reduced different buckets.
void Replica::backward(const at::Tensor& loss, double loss_grad, bool reduce) {
  if (!loss.requires_grad()) return;
  broken_ = true;
  if (reducer_ && reduce) reducer_->start(loss);
  torch::autograd::backward({loss}, {at::full_like(loss, loss_grad)});
  if (reducer_ && reduce) reducer_->finish();
  broken_ = false;
}

void Replica::drop_gradients() {
  for (const Parameter& p : parameters_.all()) p.leaf.mutable_grad().reset();
}

// Returns the squared norm of all gradients. It is the same on every rank without communication,
// because all ranks have the same reduced gradients and sum them in the same order.
double Replica::squared_gradients() {
  const at::Tensor& memory = parameters_.all().front().memory;
  const at::Tensor sum = at::zeros({}, memory.options().dtype(at::kDouble));
  for (const Parameter& p : parameters_.all()) {
    if (p.info->trainable == 0) continue;
    at::Tensor& grad = p.leaf.mutable_grad();
    // A parameter that the loss does not depend on has a zero gradient.
    if (!grad.defined()) grad = at::zeros_like(p.leaf);
    sum.add_(squared_norm(grad));
  }
  return sum.item<double>();
}

void Replica::reduce_scalars(at::Tensor& scalars) const {
  c10d::ProcessGroup* const group = environment_.scalars;
  if (group == nullptr) return;
  std::vector<at::Tensor> list{scalars};
  group->getBackend(scalars.device().type())->allreduce(list, {})->wait();
}

void Replica::checkpoint(const YokeCheckpointArgs& args) {
  const at::NoGradGuard no_graph;
  visit_state(args, parameters_, optimizer_, environment_.host.rank);
  if (args.op == YOKE_CHECKPOINT_LOAD) parameters_.publish();
}

}  // namespace yoke::accelerate_compat
