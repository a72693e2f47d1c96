// One step.
//
//   for each micro-batch: forward and backward of all blocks; gradients are added to the buffer,
//                         and during the last micro-batch buckets are averaged over the ranks
//   norm:                 of the whole gradient, which every rank has
//   update:               clip, then AdamW on the slices of this rank
//   gather:               the slices of all ranks
//
// ZeRO stage 0 is the same with one slice, the whole buffer, and nothing to gather.
#include "plugins/nanotron_compat/engine.hpp"

#include <ATen/ATen.h>

#include <cmath>

#include "plugins/nanotron_compat/plan.hpp"
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

}  // namespace

Environment::Environment(const YokeInitArgs& args)
    : plan(*args.plan), host(*args.host), settings(settings_of(args)), comms(host, settings.zero) {}

Engine::Engine(const YokeModel& model, const Environment& environment)
    : model_(model),
      environment_(environment),
      config_(*environment.plan.optimizer),
      layout_(
          Layout::of(*model.summary,
                     environment.settings.bucket_bytes / item_size(environment.plan.param_dtype))),
      options_(compat::param_options(environment.plan, environment.host)),
      parameters_(
          model, layout_, options_, layout_.slices(owner(environment), owners(environment))),
      gradients_(*model.summary,
                 layout_,
                 environment.comms,
                 reduction(environment),
                 options_.dtype(scalar_type(environment.plan.reduce_dtype))),
      optimizer_(config_, *model.summary, layout_, parameters_, gradients_.all()),
      gather_(layout_, parameters_, environment.comms),
      units_(compat::recomputed_units(
          *model.summary,
          environment.settings.recompute ? compat::Recompute::kUniform : compat::Recompute::kNone,
          1)),
      pass_(model,
            environment.host,
            units_,
            {[](uint64_t) {},
             [this](int64_t p, const YokeTensor& gradient) { gradients_.add(p, gradient); }}) {
  const YokeHost& host = environment.host;
  if (host.rank != 0) return;
  const std::string line = concat("nanotron_compat: ZeRO stage ",
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
  result.activation_bytes = compat::activation_bytes(*model_.summary, units_, plan.micro_batch);
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
  const compat::BatchTotals own = training ? compat::train_batch(pass_,
                                                                 gradients_,
                                                                 environment_.settings.loss,
                                                                 batch,
                                                                 environment_.comms.data.size())
                                           : compat::evaluate_batch(pass_, batch);
  const compat::BatchTotals totals = over_ranks(own);
  call([&](YokeError* err) { return yoke_check_weight(&batch, totals.targets, err); });
  if (!training) return step_result(args, totals.loss, totals.targets, kUnknown);

  compat::require_even(environment_.settings.loss,
                       totals.uneven,
                       "nanotron trains on",
                       "set nanotron_compat.loss = \"per_token\" to train on the mean over all "
                       "targets, or \"mean_of_means\" to train as nanotron does");
  const double norm = this->norm();
  const YokeStepResult result = step_result(args, totals.loss, totals.targets, norm);
  if (std::isinf(norm)) return result;
  optimizer_.update(args.step, args.lr, clip_scale(config_.clip, norm));
  if (environment_.settings.zero) gather_.run();
  return result;
}

compat::BatchTotals Engine::over_ranks(const compat::BatchTotals& own) const {
  at::Tensor totals =
      at::tensor({own.loss, own.targets, own.uneven}, at::kDouble).to(options_.device());
  environment_.comms.scalars.all_reduce(span(totals)).wait();
  totals = totals.cpu();
  const double* const t = totals.data_ptr<double>();
  return {t[0], t[1], t[2]};
}

// All ranks have the same gradients, bit for bit, and so the same norm.
double Engine::norm() const {
  const at::Tensor squares = at::zeros({}, gradients_.all().options().dtype(at::kDouble));
  compat::add_squares(gradients_.all(), squares);
  return gradient_norm(squares.item<double>());
}

// With ZeRO every slice has one owner, else all ranks own everything.
void Engine::checkpoint(const YokeCheckpointArgs& args) {
  const at::NoGradGuard no_graph;
  const int64_t rank = environment_.host.rank;
  const int64_t replica = environment_.settings.zero ? 0 : rank;
  compat::visit({*model_.summary, layout_, parameters_, optimizer_, replica, rank}, args);
  if (args.op == YOKE_CHECKPOINT_LOAD && environment_.settings.zero) gather_.run();
}

}  // namespace yoke::nanotron_compat
