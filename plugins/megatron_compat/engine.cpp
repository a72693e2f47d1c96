// One step.
//
//   for each micro-batch: forward and backward of all blocks; gradients are added to the buffer,
//                         and during the last micro-batch buckets are reduced
//   over_ranks:           one all-reduce of loss, number of targets and squared norm
//   update:               clip, then AdamW on this rank's shards
//   gather:               the buckets, now or during the next forward
//
// The distributed optimizer and the plain one are the same code: without it a bucket has one shard,
// and a reduction over the instances is an all-reduce of the whole bucket.
#include "plugins/megatron_compat/engine.hpp"

#include <ATen/ATen.h>

#include <cmath>

#include "plugins/megatron_compat/plan.hpp"
#include "sdk/compat/batch_loss.hpp"
#include "sdk/compat/flat_state.hpp"
#include "yoke/flat.h"
#include "yoke/text.hpp"

namespace yoke::megatron_compat {
namespace {

// Megatron averages over the data ranks, and a micro-batch with the loss per token is not averaged.
Gradients::Rules reduction(const Environment& e) {
  const bool per_token = e.settings.loss == Loss::kPerToken;
  const bool divides = !per_token && !e.settings.average_in_collective;
  return {e.settings.overlap_grad_reduce,
          !per_token && e.settings.average_in_collective,
          divides ? 1.0 / e.comms.data_ranks() : 1.0};
}

}  // namespace

Environment::Environment(const YokeInitArgs& args)
    : plan(*args.plan), host(*args.host), settings(settings_of(args)), comms(host) {}

Engine::Engine(const YokeModel& model, const Environment& environment)
    : model_(model),
      environment_(environment),
      config_(*environment.plan.optimizer),
      layout_(Layout::of(*model.summary,
                         bucket_rules(*model.summary,
                                      environment.settings,
                                      environment.comms.reduce.size(),
                                      environment.comms.data_ranks()))),
      options_(compat::param_options(environment.plan, environment.host)),
      parameters_(model, layout_, options_, layout_.shards(environment.comms.reduce.rank())),
      gradients_(*model.summary,
                 layout_,
                 environment.comms,
                 reduction(environment),
                 options_.dtype(scalar_type(environment.plan.reduce_dtype))),
      optimizer_(config_, *model.summary, layout_, parameters_, gradients_.all()),
      gather_(*model.summary, layout_, parameters_, environment.comms),
      units_(compat::recomputed_units(
          *model.summary, environment.settings.recompute, environment.settings.recompute_layers)),
      pass_(model,
            environment.host,
            units_,
            {[this](uint64_t block) { gather_.before(block); },
             [this](int64_t p, const YokeTensor& gradient) { gradients_.add(p, gradient); }}) {
  const YokeHost& host = environment.host;
  if (host.rank != 0) return;
  const int shards = environment.comms.reduce.size(), copies = environment.comms.instances.size();
  const std::string line = concat(
      "megatron_compat: ",
      environment.settings.distributed_optimizer
          ? concat("distributed optimizer, ", copies, " instance(s) of ", shards, " shard(s)")
          : concat(copies, " replica(s)"),
      ", ",
      layout_.buckets().size(),
      " bucket(s)");
  host.log(host.ctx, YOKE_LOG_INFO, view(line));
}

YokeWrapResult Engine::wrap_result() const {
  const YokePlan& plan = environment_.plan;
  YokeWrapResult result{};
  result.param_bytes = parameters_.bytes();
  result.grad_bytes = gradients_.bytes();
  result.optimizer_bytes = optimizer_.bytes();
  result.activation_bytes = compat::activation_bytes(*model_.summary, units_, plan.micro_batch);
  const int shards = environment_.comms.reduce.size();
  const int64_t grads = gradients_.bytes();
  if (shards > 1)
    result.axis_bytes[YOKE_DP_SHARD] = grads + layout_.size() * item_size(plan.param_dtype);
  if (environment_.comms.instances.size() > 1)
    result.axis_bytes[YOKE_DP_REPLICATE] = grads / shards;
  return result;
}

YokeStepResult Engine::step(const YokeStepArgs& args) {
  const YokeBatch& batch = *args.batch;
  const bool training = (args.flags & YOKE_STEP_FORWARD_ONLY) == 0;
  const at::NoGradGuard no_graph;
  const compat::BatchTotals own = training ? compat::train_batch(pass_,
                                                                 gradients_,
                                                                 environment_.settings.loss,
                                                                 batch,
                                                                 environment_.comms.data_ranks())
                                           : compat::evaluate_batch(pass_, batch);
  const auto [totals, squared_norm] = over_ranks(own, training);
  call([&](YokeError* err) { return yoke_check_weight(&batch, totals.targets, err); });
  if (!training) return step_result(args, totals.loss, totals.targets, kUnknown);

  compat::require_even(
      environment_.settings.loss,
      totals.uneven,
      "Megatron trains on without --calculate-per-token-loss",
      "add --calculate-per-token-loss to train on the mean over all targets, or set "
      "megatron_compat.loss = \"mean_of_means\" to train as Megatron does");
  const double norm = gradient_norm(squared_norm);
  const YokeStepResult result = step_result(args, totals.loss, totals.targets, norm);
  if (std::isinf(norm)) return result;
  optimizer_.update(args.step, args.lr, clip_scale(config_.clip, norm));
  gather_.invalidate();
  if (!environment_.settings.overlap_param_gather) gather_.all();
  return result;
}

// Every instance has the whole gradient, so only the first one adds its squares.
Engine::Totals Engine::over_ranks(const compat::BatchTotals& own, bool training) const {
  at::Tensor sums = at::tensor({own.loss, own.targets, own.uneven, 0.0}, at::kDouble);
  sums = sums.to(options_.device());
  if (training && environment_.comms.instances.rank() == 0)
    sums[3].copy_(optimizer_.squared_norm());
  environment_.comms.scalars.all_reduce(span(sums)).wait();
  sums = sums.cpu();
  const double* const s = sums.data_ptr<double>();
  return {{s[0], s[1], s[2]}, s[3]};
}

// The shards of the first instance are saved; those of other instances, frozen parameters and the
// step of other ranks are replicas, which the host compares.
void Engine::checkpoint(const YokeCheckpointArgs& args) {
  const at::NoGradGuard no_graph;
  compat::visit({*model_.summary,
                 layout_,
                 parameters_,
                 optimizer_,
                 environment_.comms.instances.rank(),
                 environment_.host.rank},
                args);
  if (args.op != YOKE_CHECKPOINT_LOAD) return;
  gather_.invalidate();
  gather_.all();
}

}  // namespace yoke::megatron_compat
