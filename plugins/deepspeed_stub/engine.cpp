// One step under ZeRO.
//
//   for each micro-batch: forward of all blocks, backward in reverse order
//                         (the backward reports gradients, which are reduced in buckets)
//   reduce_totals:        one all-reduce of loss, number of targets and squared gradient norm
//   update:               of this rank's slice; its new values are sent to the other ranks
//   read_totals:          the host reads loss and norm
//
// The engine is the same at every stage; the stages differ in their implementations of Weights and
// Gradients. The engine runs the blocks itself, through the callbacks of the model, so it knows
// their order in advance and need not trace it, unlike DeepSpeed.
#include "plugins/deepspeed_stub/engine.hpp"

#include <utility>

#include "plugins/deepspeed_stub/checkpoint.hpp"
#include "plugins/deepspeed_stub/flat_weights.hpp"
#include "plugins/deepspeed_stub/kernels/elements.hpp"
#include "plugins/deepspeed_stub/plan.hpp"
#include "plugins/deepspeed_stub/sliced_weights.hpp"
#include "plugins/deepspeed_stub/summary.hpp"
#include "sdk/compat/activations.hpp"
#include "yoke/backend.hpp"
#include "yoke/fp8_params.hpp"
#include "yoke/text.hpp"

namespace yoke::deepspeed_stub {
namespace {

std::unique_ptr<Weights> make_weights(const Setup& setup) {
  if (setup.settings.stage == 3) return std::make_unique<SlicedWeights>(setup);
  return std::make_unique<FlatWeights>(setup);
}

std::unique_ptr<Gradients> make_gradients(const Setup& setup) {
  if (setup.settings.stage == 3) return std::make_unique<SlicedGradients>(setup);
  return std::make_unique<FlatGradients>(setup);
}

OffloadSettings offload_of(const DsConfig& config) {
  PlanMessages messages;  // already reported when the plan was made
  return read_offload(config, config.zero_stage(), messages);
}

// Rank 0 reports once if io_uring is not permitted.
std::unique_ptr<FileIo> open_io(const OffloadSettings& offload, const YokeHost& host) {
  if (!offload.uses_files()) return nullptr;
  if (offload.optimizer.place == Place::kFile)
    require_disk_folder(offload.optimizer.folder, "offload_optimizer.nvme_path");
  if (offload.params.place == Place::kFile)
    require_disk_folder(offload.params.folder, "offload_param.nvme_path");
  std::string why_not;
  if (std::unique_ptr<FileIo> io = open_uring(offload.io, &why_not)) return io;
  const std::string note = concat("deepspeed_stub: offload reads and writes files with ",
                                  offload.io.threads,
                                  " thread(s) per rank, because io_uring cannot be used (",
                                  why_not,
                                  ")");
  if (host.rank == 0) host.log(host.ctx, YOKE_LOG_WARNING, view(note));
  return open_threads(offload.io);
}

int moments_of(const YokeOptimizer& optimizer) {
  const char* kinds[2];
  return yoke_moments(&optimizer, kinds);
}

// The callback on_grad_ready. If it fails, block_backward returns its error.
int32_t receive_gradient(void* ctx, int64_t param, const YokeTensor* gradient, YokeError* err) {
  return guard(err, [&] {
    static_cast<Gradients*>(ctx)->add(
        param, {data<void>(*gradient), numel(*gradient), YOKE_DTYPE_OF(gradient->dtype)});
  });
}

}  // namespace

Environment::Environment(const YokeInitArgs& args)
    : plan(*args.plan),
      host(*args.host),
      config(Options(args.options, args.num_options)),
      offload(offload_of(config)),
      device(host),
      cpu({YOKE_DEVICE_CPU, 0}, nullptr),
      io(open_io(offload, host)),
      comms(host, YOKE_AXIS_BIT(data_axis(config.zero_stage()))) {}

Engine::Engine(const YokeModel& model, const Environment& environment)
    : model_(model),
      environment_(environment),
      config_(*environment.plan.optimizer),
      spec_(*model.summary),
      settings_(settings_of(environment.config, *model.summary, environment.plan)),
      setup_{.model = model_,
             .spec = spec_,
             .settings = settings_,
             .comms = environment.comms,
             .device = environment.device,
             .host = environment.cpu,
             .io = environment.io.get(),
             .moments = moments_of(config_),
             .param_dtype = environment.plan.param_dtype,
             .master_dtype = environment.plan.param_dtype == YOKE_F64 ? YOKE_F64 : YOKE_F32,
             .gradient_dtype = environment.plan.reduce_dtype},
      weights_(make_weights(setup_)),
      gradients_(make_gradients(setup_)),
      optimizer_(config_, setup_, weights_->trainable()),
      blocks_(spec_.blocks.size()),
      totals_(environment.device, sizeof(StepTotals) / sizeof(double), YOKE_F64) {
  const YokeHost& host = environment.host;
  if (host.rank != 0) return;
  const std::string line = summary_line(spec_, settings_, environment.plan.world_size);
  host.log(host.ctx, YOKE_LOG_INFO, view(line));
}

YokeWrapResult Engine::wrap_result() const {
  YokeWrapResult result{};
  result.header = YOKE_HEADER(YokeWrapResult, YOKE_ID_WRAP_RESULT);
  result.param_bytes = weights_->bytes();
  result.grad_bytes = gradients_->bytes();
  result.optimizer_bytes = optimizer_.bytes();
  result.activation_bytes =
      compat::activation_bytes(*model_.summary, {}, environment_.plan.micro_batch);
  if (keeps_roundings(micros_of(environment_.plan)))
    result.unsharded_bytes = kept_rounding_bytes(*model_.summary);
  result.axis_bytes[data_axis(settings_.stage)] = step_traffic(spec_, settings_, environment_.plan);
  return result;
}

// Parameters of stage 3 are freed after each use.
bool Engine::keeps_roundings(int64_t micros) const {
  return micros > 1 && settings_.stage < 3;
}

YokeStepResult Engine::step(const YokeStepArgs& args) {
  const YokeBatch& batch = *args.batch;
  const bool training = (args.flags & YOKE_STEP_FORWARD_ONLY) == 0;
  if (batch.num_micros == 0)
    throw Error(YOKE_INVALID_ARGUMENT, "step: the batch has no micro-batch");
  loss_ = targets_ = 0;
  if (training) gradients_->begin_step(static_cast<int64_t>(batch.num_micros));
  // A loss is a sum over targets. Gradients are divided by the number of targets of the global
  // batch, so their sum over ranks and micro-batches is the gradient of the mean loss.
  const double scale = yoke_loss_scale(&args);
  {
    const bool keeps = training && keeps_roundings(static_cast<int64_t>(batch.num_micros));
    const KeptRoundings kept(fp8_params(*model_.summary), keeps);
    for (uint64_t m = 0; m < batch.num_micros; ++m)
      run_micro_batch(*batch.micros[m], scale / batch.token_weight, training);
  }
  if (training) optimizer_.prefetch();
  reduce_totals({batch.token_weight, config_.clip, scale}, training);
  if (training) update(args.step, args.lr);
  const StepTotals totals = read_totals(batch.token_weight);
  if (training && totals.update != 0) optimizer_.commit();

  const double norm = training ? gradient_norm(totals.squared_norm) / scale : kUnknown;
  return step_result(args, totals.loss, totals.targets, norm);
}

void Engine::run_micro_batch(const YokeMicroBatch& micro, double loss_grad, bool training) {
  weights_->begin_pass(training);
  try {
    forward(micro, training);
    if (training) backward(loss_grad);
  } catch (...) {
    drop_blocks();
    throw;
  }
  drop_blocks();
}

void Engine::forward(const YokeMicroBatch& micro, bool training) {
  for (size_t b = 0; b < blocks_.size(); ++b) {
    check_cancel();
    weights_->acquire(static_cast<int64_t>(b));
    YokeForwardArgs args{};
    args.header = YOKE_HEADER(YokeForwardArgs, YOKE_ID_FORWARD_ARGS);
    args.block = b;
    args.micro = &micro;
    args.carry_in = b > 0 ? &blocks_[b - 1].carry->tensor : nullptr;
    args.save = training ? 1 : 0;
    YokeForwardResult out{};
    out.header = YOKE_HEADER(YokeForwardResult, YOKE_ID_FORWARD_RESULT);
    call([&](YokeError* err) { return model_.block_forward(model_.ctx, &args, &out, err); });
    blocks_[b].carry.reset(out.carry_out);
    blocks_[b].saved = out.saved;
    require_dlpack(blocks_[b].carry);
    if (b + 1 == blocks_.size()) {
      loss_ += out.loss_sum;
      targets_ += out.loss_weight;
    }
    // In training the backward still needs the carries.
    if (!training && b > 0) blocks_[b - 1].carry.reset();
    weights_->release(static_cast<int64_t>(b));
  }
}

void Engine::backward(double loss_grad) {
  gradients_->begin_micro();
  ManagedTensor grad_out;
  for (size_t b = blocks_.size(); b-- > 0;) {
    check_cancel();
    const auto use = static_cast<int64_t>(2 * blocks_.size() - 1 - b);
    weights_->acquire(use);
    YokeBackwardArgs args{};
    args.header = YOKE_HEADER(YokeBackwardArgs, YOKE_ID_BACKWARD_ARGS);
    args.block = b;
    args.saved = std::exchange(blocks_[b].saved, nullptr);  // block_backward consumes it
    args.grad_out = grad_out ? &grad_out->tensor : nullptr;
    args.loss_grad = loss_grad;
    args.on_grad_ready = receive_gradient;
    args.on_grad_ctx = gradients_.get();
    YokeManagedTensor* grad_in = nullptr;
    call([&](YokeError* err) { return model_.block_backward(model_.ctx, &args, &grad_in, err); });
    grad_out.reset(grad_in);
    require_dlpack(grad_out);
    blocks_[b].carry.reset();
    weights_->release(use);
  }
  gradients_->end_micro();
}

void Engine::drop_blocks() {
  for (BlockState& block : blocks_) {
    if (block.saved != nullptr) model_.drop_saved(model_.ctx, block.saved);
    block.saved = nullptr;
    block.carry.reset();
  }
}

void Engine::check_cancel() const {
  const YokeHost& host = environment_.host;
  if (host.check_cancel(host.ctx) != 0) throw Error(YOKE_CANCELLED, "the step was cancelled");
}

// One all-reduce per step sums the loss, the number of targets and the squared norm. From the
// result the device computes the factor of the gradients and whether there is an update at all, and
// the update reads both from device memory. The host can therefore issue the update to a CUDA
// device before it knows the norm.
void Engine::reduce_totals(const UpdateRule& rule, bool training) {
  const Device& device = setup_.device;
  device.kernels().set_totals(device.queue(), {loss_, targets_, 0, 1, 0}, totals());
  if (training) device.squared_norm(gradients_->norm_part(), &totals()->squared_norm);
  environment_.comms.scalars.all_reduce(totals_.sub(0, 3)).wait();
  if (training) device.kernels().decide_update(device.queue(), rule, totals());
}

void Engine::update(int64_t step, double lr) {
  optimizer_.begin_step(step, lr);
  weights_->publish([&](int64_t begin, int64_t count) {
    optimizer_.update(gradients_->own(), begin, count, totals_.span());
  });
  optimizer_.finish_step();
}

// This is where a step waits for a CUDA device. The only other wait is inside the model, whose last
// block returns its loss to the host as a number.
StepTotals Engine::read_totals(double claimed_targets) const {
  StepTotals totals;
  setup_.device.download(totals_.span(), &totals);
  if (target_counts_agree(totals.targets, claimed_targets)) return totals;
  throw Error(
      YOKE_INVALID_ARGUMENT,
      concat(
          "the batch claims ", claimed_targets, " targets, but its losses cover ", totals.targets));
}

// Each piece of sliced state exists on one rank only, so its replica number is 0. State that every
// rank keeps is written by rank 0; the other ranks pass their copies as replicas, which the host
// compares with it.
void Engine::checkpoint(const YokeCheckpointArgs& args) {
  const int64_t stage = settings_.stage, rank = environment_.comms.gather.rank();
  const bool trainable_sliced = stage > 0, frozen_sliced = stage == 3;
  visit_state(args,
              *model_.summary,
              *weights_,
              optimizer_,
              {trainable_sliced ? 0 : rank, frozen_sliced ? 0 : rank, rank},
              setup_);
  if (args.op == YOKE_CHECKPOINT_LOAD) weights_->refresh();
}

}  // namespace yoke::deepspeed_stub
