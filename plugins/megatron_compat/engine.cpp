// One step.
//
//   for each micro-batch: forward and backward of all blocks; gradients are added to the buffer,
//                         and during the last micro-batch buckets are reduced
//   reduce_totals:        one all-reduce of loss, number of targets and squared norm
//   update:               clip, then AdamW on this rank's shards
//   gather:               the buckets, now or during the next forward
//
// The distributed optimizer and the plain one are the same code: without it a bucket has one shard,
// and a reduction over the instances is an all-reduce of the whole bucket.
#include "plugins/megatron_compat/engine.hpp"

#include <ATen/ATen.h>

#include <cmath>

#include "plugins/megatron_compat/plan.hpp"
#include "yoke/flat.h"
#include "yoke/text.hpp"

namespace yoke::megatron_compat {
namespace {

at::TensorOptions options_of(const YokePlan& plan, const YokeHost& host) {
  const bool on_device = host.device.type == YOKE_DEVICE_CUDA;
  return at::TensorOptions()
      .dtype(scalar_type(plan.param_dtype))
      .device(on_device ? at::Device(at::kCUDA, static_cast<int8_t>(host.device.id))
                        : at::Device(at::kCPU));
}

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
      layout_(*model.summary,
              bucket_rules(*model.summary,
                           environment.settings,
                           environment.comms.reduce.size(),
                           environment.comms.data_ranks())),
      options_(options_of(environment.plan, environment.host)),
      parameters_(model, layout_, options_, environment.comms.reduce.rank()),
      gradients_(*model.summary,
                 layout_,
                 environment.comms,
                 reduction(environment),
                 options_.dtype(scalar_type(environment.plan.reduce_dtype))),
      optimizer_(config_,
                 *model.summary,
                 layout_,
                 parameters_,
                 gradients_,
                 environment.comms.reduce.rank()),
      gather_(*model.summary, layout_, parameters_, environment.comms),
      units_(recomputed_units(
          *model.summary, environment.settings.recompute, environment.settings.recompute_layers)),
      pass_(model, environment.host, units_, gather_, gradients_) {
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
  result.activation_bytes = activation_bytes(*model_.summary, units_, plan.micro_batch);
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
  if (batch.num_micros == 0)
    throw Error(YOKE_INVALID_ARGUMENT, "step: the batch has no micro-batch");
  const at::NoGradGuard no_graph;
  if (training) gradients_.begin_step();
  Totals own{};
  for (uint64_t m = 0; m < batch.num_micros; ++m) {
    const YokeMicroBatch& micro = *batch.micros[m];
    if (training) gradients_.begin_micro(m + 1 == batch.num_micros);
    const Pass::Result result =
        training ? pass_.train(micro, loss_grad(batch, micro)) : pass_.evaluate(micro);
    own.loss += result.loss;
    own.targets += result.targets;
    if (training) own.uneven += is_uneven(batch, micro, result.targets) ? 1 : 0;
  }
  if (training) gradients_.finish();
  const Totals totals = reduce_totals(own, training);
  call([&](YokeError* err) { return yoke_check_weight(&batch, totals.targets, err); });

  if (!training) return step_result(args, totals.loss, totals.targets, kUnknown);
  check_even(totals);
  const double norm = gradient_norm(totals.squared_norm);
  const YokeStepResult result = step_result(args, totals.loss, totals.targets, norm);
  if (std::isinf(norm)) return result;
  optimizer_.update(args.step, args.lr, clip_scale(config_.clip, norm));
  gather_.invalidate();
  if (!environment_.settings.overlap_param_gather) gather_.all();
  return result;
}

// The gradient of a step is a sum over ranks and micro-batches. Per token, each target has the same
// weight. Otherwise each micro-batch has the same weight, and the mean over the ranks is left to
// the reduction.
double Engine::loss_grad(const YokeBatch& batch, const YokeMicroBatch& micro) const {
  if (environment_.settings.loss == Loss::kPerToken) return 1 / batch.token_weight;
  const auto micros = static_cast<double>(batch.num_micros);
  return micro.token_weight > 0 ? 1 / (micro.token_weight * micros) : 0;
}

// The gradient of a micro-batch has been divided by the weight that the host announced.
bool Engine::is_uneven(const YokeBatch& batch, const YokeMicroBatch& micro, double targets) const {
  if (environment_.settings.loss == Loss::kPerToken) return false;
  if (micro.token_weight != targets)
    throw Error(YOKE_INVALID_ARGUMENT,
                concat("a micro-batch announces ",
                       micro.token_weight,
                       " targets, but its losses have ",
                       targets,
                       "; a mean over its targets needs their number"));
  const auto micros = static_cast<double>(batch.num_micros);
  return targets * micros * environment_.comms.data_ranks() != batch.token_weight;
}

// Every instance has the whole gradient, so only the first one adds its squares.
Engine::Totals Engine::reduce_totals(const Totals& own, bool training) const {
  at::Tensor totals = at::tensor({own.loss, own.targets, 0.0, own.uneven}, at::kDouble);
  totals = totals.to(options_.device());
  if (training && environment_.comms.instances.rank() == 0)
    totals[2].copy_(optimizer_.squared_norm());
  environment_.comms.scalars.all_reduce(span(totals)).wait();
  totals = totals.cpu();
  const double* const t = totals.data_ptr<double>();
  return {t[0], t[1], t[2], t[3]};
}

// Every rank throws, because every rank has the sum.
void Engine::check_even(const Totals& totals) const {
  if (environment_.settings.loss != Loss::kEven || totals.uneven == 0) return;
  throw Error(
      YOKE_INVALID_ARGUMENT,
      concat("the micro-batches of this step have different numbers of targets, so the mean of "
             "their means, which Megatron trains on without --calculate-per-token-loss, depends "
             "on the layout; add --calculate-per-token-loss to train on the mean over all "
             "targets, or set megatron_compat.loss = \"mean_of_means\" to train as Megatron does"));
}

void Engine::show(const YokeCheckpointArgs& args, YokePiece piece, const at::Tensor& values) const {
  piece.header = YOKE_HEADER(YokePiece, YOKE_ID_PIECE);
  piece.dtype = dtype_of(values.scalar_type());
  piece.count = piece.run = values.numel();
  const TensorView view(values);
  if (args.op != YOKE_CHECKPOINT_DESCRIBE) piece.view = view.get();
  call([&](YokeError* err) { return args.visit(args.visit_ctx, &piece, err); });
}

// The shards of the first instance are saved; those of other instances, frozen parameters and the
// step of other ranks are replicas, which the host compares.
void Engine::checkpoint(const YokeCheckpointArgs& args) {
  const at::NoGradGuard no_graph;
  const YokeModelSummary& model = *model_.summary;
  const Comms& comms = environment_.comms;
  const auto piece_of = [&](int64_t param, int64_t begin, const char* kind, int64_t replica) {
    YokePiece piece{};
    piece.name = model.params[param]->name;
    piece.kind = view(kind);
    piece.shape = model.params[param]->shape;
    piece.ndim = model.params[param]->ndim;
    piece.begin = begin;
    piece.replica = replica;
    return piece;
  };
  for (int64_t b = 0; b < static_cast<int64_t>(layout_.buckets().size()); ++b) {
    const Bucket shard = layout_.shard(b, comms.reduce.rank());
    for (const Piece& p : layout_.pieces(shard.begin, shard.size)) {
      const auto part = [&](const at::Tensor& all) {
        return all.narrow(0, p.offset - shard.begin, p.count);
      };
      const int64_t replica = comms.instances.rank();
      show(args, piece_of(p.param, p.begin, "param", replica), part(parameters_.master(b)));
      for (size_t k = 0; k < optimizer_.kinds().size(); ++k)
        show(args,
             piece_of(p.param, p.begin, optimizer_.kinds()[k].c_str(), replica),
             part(optimizer_.moment(k, b)));
    }
  }
  const int64_t rank = environment_.host.rank;
  for (int64_t p = 0; p < static_cast<int64_t>(model.num_params); ++p) {
    if (layout_.offset(p) < 0) show(args, piece_of(p, 0, "param", rank), parameters_.frozen(p));
  }
  YokePiece step{};
  step.name = view("optimizer");
  step.kind = view("step");
  step.replica = rank;
  at::Tensor last_step = at::tensor(optimizer_.last_step(), at::kLong);
  show(args, step, last_step);
  if (args.op != YOKE_CHECKPOINT_LOAD) return;
  optimizer_.restore(last_step.item<int64_t>());
  parameters_.publish();
  gather_.invalidate();
  gather_.all();
}

}  // namespace yoke::megatron_compat
