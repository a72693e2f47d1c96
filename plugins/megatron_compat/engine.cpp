// One step.
//
//   for each micro-batch: forward and backward of all blocks; gradients are added to the buffer,
//                         and during the last micro-batch buckets are reduced
//   complete:             gradients that ranks of pp and tp share are summed over them
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
#include "plugins/megatron_compat/stages.hpp"
#include "sdk/compat/batch_loss.hpp"
#include "sdk/compat/flat_plan.hpp"
#include "sdk/compat/flat_state.hpp"
#include "yoke/flat.h"
#include "yoke/text.hpp"

namespace yoke::megatron_compat {
namespace {

// Megatron averages over the data ranks, and a micro-batch with the loss per token is not averaged.
// A collective averages over the ranks of cp as well, which have parts of the same sequences.
Gradients::Rules reduction(const Environment& e) {
  const bool per_token = e.settings.loss == Loss::kPerToken;
  const bool collective = !per_token && e.settings.average_in_collective;
  const double scale = per_token    ? 1.0
                       : collective ? e.comms.model.cp.size()
                                    : 1.0 / e.comms.data_ranks();
  return {e.settings.overlap_grad_reduce, collective, scale};
}

// Megatron cuts the sequence so that all ranks of cp have equal work under a causal mask.
mesh::MeshOptions mesh_options(const Settings& settings) {
  return {.sequence_parallel = settings.sequence_parallel,
          .loss_parallel = true,
          .exchange = settings.gather_keys ? mesh::SequenceExchange::kAllGather
                                           : mesh::SequenceExchange::kRing,
          .order = mesh::SequenceOrder::kHeadTail,
          .log_ops = false};
}

mesh::Pipeline pipeline_of(const YokeModelSummary& model, const Environment& e) {
  PlanMessages messages;  // already reported when the plan was made
  return pipeline_of(model, e.config, e.settings, e.plan.degree[YOKE_PP], messages);
}

compat::Division division_of(const Environment& e, const mesh::Pipeline& pipeline) {
  return {pipeline, mesh_options(e.settings), e.settings.recompute, e.settings.recompute_layers};
}

BucketRules rules_of(const YokeModelSummary& part,
                     const compat::Part& shares,
                     const Environment& e,
                     const mesh::Pipeline& pipeline) {
  const int rank = e.comms.model.pp_rank();
  BucketRules rules =
      bucket_rules(part, e.settings, e.comms.reduce.size(), e.comms.copies(), rank == 0);
  for (const mesh::OwnStage& stage : mesh::own_stages(pipeline.stages, rank))
    rules.stage_ends.push_back(static_cast<uint64_t>(stage.end));
  rules.is_shared = [&shares](int64_t param) { return shares.is_shared(param); };
  return rules;
}

}  // namespace

Environment::Environment(const YokeInitArgs& args)
    : plan(*args.plan),
      host(*args.host),
      config(Options(args.options, args.num_options)),
      settings(settings_of(args)),
      comms(host, plan, settings.distributed_optimizer, has_virtual_stages(settings)) {}

Engine::Engine(const YokeModel& model, const Environment& environment)
    : environment_(environment),
      config_(*environment.plan.optimizer),
      pipeline_(pipeline_of(*model.summary, environment)),
      part_(compat::make_part(model,
                              division_of(environment, pipeline_),
                              environment.comms.model,
                              environment.plan,
                              environment.host)),
      model_(part_->model()),
      layout_(
          Layout::of(*model_.summary, rules_of(*model_.summary, *part_, environment, pipeline_))),
      options_(compat::param_options(environment.plan, environment.host)),
      parameters_(model_, layout_, options_, layout_.shards(environment.comms.reduce.rank())),
      gradients_(*model_.summary,
                 layout_,
                 environment.comms,
                 reduction(environment),
                 options_.dtype(scalar_type(environment.plan.reduce_dtype))),
      optimizer_(config_,
                 *model_.summary,
                 layout_,
                 parameters_,
                 gradients_.all(),
                 [this](int64_t param) { return part_->counts(param); }),
      gather_(*model_.summary, layout_, parameters_, environment.comms),
      pass_(part_->pass(
          {[this](uint64_t block) { gather_.before(block); },
           [this](int64_t p, const at::Tensor& gradient) { gradients_.add(p, gradient); }})) {
  const YokeHost& host = environment.host;
  if (host.rank != 0) return;
  const int shards = environment.comms.reduce.size(), copies = environment.comms.instances.size();
  const std::string line = concat(
      "megatron_compat: ",
      compat::model_degrees_text(environment.plan),
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
  result.activation_bytes = part_->activation_bytes();
  result.axis_bytes[YOKE_PP] = part_->message_bytes();
  const int shards = environment_.comms.reduce.size();
  const int64_t grads = gradients_.bytes();
  if (plan.degree[YOKE_DP_SHARD] > 1)
    result.axis_bytes[YOKE_DP_SHARD] = grads + layout_.size() * item_size(plan.param_dtype);
  if (plan.degree[YOKE_DP_REPLICATE] > 1) result.axis_bytes[YOKE_DP_REPLICATE] = grads / shards;
  return result;
}

YokeStepResult Engine::step(const YokeStepArgs& args) {
  const YokeBatch& batch = *args.batch;
  const bool training = (args.flags & YOKE_STEP_FORWARD_ONLY) == 0;
  const at::NoGradGuard no_graph;
  const compat::RankTotals own = training ? train(batch) : pass_->evaluate(batch);
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

compat::RankTotals Engine::train(const YokeBatch& batch) {
  gradients_.begin_step(batch.num_micros);
  const compat::RankTotals totals =
      pass_->train(batch, environment_.settings.loss, environment_.comms.data_ranks());
  gradients_.finish();
  part_->complete(layout_, gradients_.all(), parameters_.owned());
  return totals;
}

// Every instance has the whole gradient, so only the first one adds its squares.
Engine::Totals Engine::over_ranks(const compat::RankTotals& own, bool training) const {
  at::Tensor sums =
      at::tensor({0.0, own.targets, own.uneven, 0.0}, at::kDouble).to(options_.device());
  sums[0].copy_(own.loss);
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
  const Comms& comms = environment_.comms;
  part_->checkpoint(
      args, {comms.instances.size(), comms.copies()}, [&](const YokeCheckpointArgs& of_part) {
        compat::visit({*model_.summary,
                       layout_,
                       parameters_,
                       optimizer_,
                       comms.instances.rank(),
                       comms.copy()},
                      of_part);
      });
  if (args.op != YOKE_CHECKPOINT_LOAD) return;
  gather_.invalidate();
  gather_.all();
}

}  // namespace yoke::megatron_compat
