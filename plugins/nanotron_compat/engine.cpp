// One step.
//
//   for each micro-batch: forward and backward of all blocks; gradients are added to the buffer,
//                         and during the last micro-batch buckets are averaged over the ranks
//   complete:             gradients that ranks of pp and tp share are summed over them
//   over_ranks:           one all-reduce of loss, number of targets and squared norm
//   update:               clip, then AdamW on the slices of this rank
//   gather:               the slices of all ranks
//
// ZeRO stage 0 is the same with one slice, the whole buffer, and nothing to gather.
#include "plugins/nanotron_compat/engine.hpp"

#include <ATen/ATen.h>

#include <cmath>

#include "plugins/nanotron_compat/plan.hpp"
#include "plugins/nanotron_compat/stages.hpp"
#include "sdk/compat/flat_plan.hpp"
#include "sdk/compat/flat_state.hpp"
#include "yoke/flat.h"
#include "yoke/text.hpp"

namespace yoke::nanotron_compat {
namespace {

int owners(const Environment& e) {
  return e.settings.zero ? e.comms.data.size() : 1;
}
int owner(const Environment& e) {
  return e.settings.zero ? e.comms.data.rank() : 0;
}

Reduction reduction(const Environment& e) {
  if (e.settings.loss == compat::Loss::kPerToken) return Reduction::kSum;
  return e.plan.reduce_dtype == e.plan.param_dtype ? Reduction::kDivideFirst : Reduction::kAverage;
}

compat::Division division_of(const YokeModelSummary& model, const Environment& e) {
  PlanMessages messages;  // already reported when the plan was made
  return {pipeline_of(model, e.settings, e.plan.degree[YOKE_PP], messages),
          {.sequence_parallel = e.settings.sequence_parallel,
           .loss_parallel = true,
           .exchange = mesh::SequenceExchange::kRing,
           .order = mesh::SequenceOrder::kHeadTail,
           .log_ops = false},
          e.settings.recompute ? compat::Recompute::kUniform : compat::Recompute::kNone,
          1};
}

}  // namespace

Environment::Environment(const YokeInitArgs& args)
    : plan(*args.plan),
      host(*args.host),
      settings(settings_of(args)),
      comms(host, plan, settings.zero) {}

Engine::Engine(const YokeModel& model, const Environment& environment)
    : environment_(environment),
      config_(*environment.plan.optimizer),
      part_(compat::make_part(model,
                              division_of(*model.summary, environment),
                              environment.comms.model,
                              environment.plan,
                              environment.host)),
      model_(part_->model()),
      layout_(
          Layout::of(*model_.summary,
                     environment.settings.bucket_bytes / item_size(environment.plan.param_dtype))),
      options_(compat::param_options(environment.plan, environment.host)),
      parameters_(
          model_, layout_, options_, layout_.slices(owner(environment), owners(environment))),
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
      gather_(layout_, parameters_, environment.comms),
      pass_(part_->pass(
          {[](uint64_t) {},
           [this](int64_t p, const at::Tensor& gradient) { gradients_.add(p, gradient); }})) {
  const YokeHost& host = environment.host;
  if (host.rank != 0) return;
  const std::string line = concat("nanotron_compat: ",
                                  compat::model_degrees_text(environment.plan),
                                  "ZeRO stage ",
                                  environment.settings.zero ? 1 : 0,
                                  " over ",
                                  environment.comms.data.size(),
                                  " rank(s), ",
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
  if (environment_.comms.data.size() == 1) return result;
  if (environment_.settings.zero) {
    result.axis_bytes[YOKE_DP_SHARD] =
        gradients_.bytes() + gather_.elements() * item_size(plan.param_dtype);
  } else {
    result.axis_bytes[YOKE_DP_REPLICATE] = gradients_.bytes();
  }
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

  compat::require_even(environment_.settings.loss,
                       totals.uneven,
                       "nanotron trains on",
                       "set nanotron_compat.loss = \"per_token\" to train on the mean over all "
                       "targets, or \"mean_of_means\" to train as nanotron does");
  const double norm = gradient_norm(squared_norm);
  const YokeStepResult result = step_result(args, totals.loss, totals.targets, norm);
  if (std::isinf(norm)) return result;
  optimizer_.update(args.step, args.lr, clip_scale(config_.clip, norm));
  if (environment_.settings.zero) gather_.run();
  return result;
}

compat::RankTotals Engine::train(const YokeBatch& batch) {
  gradients_.begin_step(batch.num_micros);
  const compat::RankTotals totals =
      pass_->train(batch, environment_.settings.loss, environment_.comms.data.size());
  gradients_.finish();
  part_->complete(layout_, gradients_.all(), {{0, layout_.size()}});
  return totals;
}

// All ranks with the same part have the same gradients, bit for bit, so only the first one adds its
// squares.
Engine::Totals Engine::over_ranks(const compat::RankTotals& own, bool training) const {
  at::Tensor sums =
      at::tensor({0.0, own.targets, own.uneven, 0.0}, at::kDouble).to(options_.device());
  sums[0].copy_(own.loss);
  if (training && environment_.comms.reduce.rank() == 0) add_squares(sums[3]);
  environment_.comms.scalars.all_reduce(span(sums)).wait();
  sums = sums.cpu();
  const double* const s = sums.data_ptr<double>();
  return {{s[0], s[1], s[2]}, s[3]};
}

void Engine::add_squares(const at::Tensor& sum) const {
  compat::Range range;  // neighbours that count
  const auto add = [&] {
    if (range.count > 0)
      compat::add_squares(gradients_.all().narrow(0, range.begin, range.count), sum);
  };
  for (const compat::Slot& slot : layout_.slots()) {
    for (const int64_t p : slot.params) {
      if (!part_->counts(p)) continue;
      if (layout_.offset(p) != range.begin + range.count) {
        add();
        range = {layout_.offset(p), 0};
      }
      range.count += compat::elements(*model_.summary, p);
    }
  }
  add();
}

// With ZeRO every slice has one owner for each rank of cp, else all ranks own everything.
void Engine::checkpoint(const YokeCheckpointArgs& args) {
  const at::NoGradGuard no_graph;
  const Comms& comms = environment_.comms;
  const bool zero = environment_.settings.zero;
  const int64_t copies = comms.reduce.size(), copy = comms.reduce.rank();
  const int64_t owners = zero ? comms.model.cp.size() : copies;
  const int64_t owner = zero ? comms.model.cp.rank() : copy;
  part_->checkpoint(args, {owners, copies}, [&](const YokeCheckpointArgs& of_part) {
    compat::visit({*model_.summary, layout_, parameters_, optimizer_, owner, copy}, of_part);
  });
  if (args.op == YOKE_CHECKPOINT_LOAD && zero) gather_.run();
}

}  // namespace yoke::nanotron_compat
