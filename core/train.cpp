// The loop contains no code for parallelism. Everything inside a step is done by the backend's
// step(), which is called through the C contract of sdk/include/yoke/parallel_backend.h: gathering
// parameters, forward, backward, reducing and clipping gradients, and the optimizer. Everything
// between steps is done here, in the same way for every backend: data, learning rate, checks,
// metrics, evaluation and checkpoints.
#include "core/train.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>

#include "core/backend/services.hpp"
#include "core/control/member.hpp"
#include "core/kernels/product_meter.hpp"
#include "core/launch/nvidia_driver.hpp"
#include "core/metrics/memory.hpp"
#include "core/run/batch_loader.hpp"
#include "core/run/learning_rate.hpp"
#include "core/run/memory_advice.hpp"
#include "core/run/metrics_reporter.hpp"
#include "core/run/run_verification.hpp"
#include "core/run/skipped_steps.hpp"
#include "core/run/step_results.hpp"
#include "core/run/stop.hpp"
#include "core/run/trace.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

Mesh mesh_of(const YokePlan& plan) {
  return Mesh({plan.degree[0], plan.degree[1], plan.degree[2], plan.degree[3], plan.degree[4]});
}

YokeInitArgs init_args(const Job& job, const HostServices& services) {
  YokeInitArgs args{};
  args.header = YOKE_HEADER(YokeInitArgs, YOKE_ID_INIT_ARGS);
  args.plan = &job.plan->plan();
  args.options = job.options.data();
  args.num_options = job.options.size();
  args.host = services.host();
  return args;
}

bool due(int64_t step, int64_t every) {
  return every > 0 && step % every == 0;
}

// The training of one rank. Members are declared in the order in which connect(), wrap(), restore()
// and loop() fill them, so that they are destroyed in reverse: the model before the context, the
// context before the services.
class Training {
 public:
  Training(const Job& job, const RunPlace& place, World& world, Log& log, Position& position)
      : job_(job),
        run_(job.config.run),
        place_(place),
        world_(world),
        log_(log),
        position_(position),
        mesh_(mesh_of(job.plan->plan())),
        assignment_{.data_rank = mesh_.data_rank(world.rank()),
                    .data_ranks = mesh_.data_ranks(),
                    .accumulation = job.plan->accumulation(),
                    .micro_batch = job.plan->plan().micro_batch},
        samples_{job.data, job.samples},
        verification_(job, mesh_, world),
        skipped_(run_, world.rank(), log),
        checkpoints_(job, place, skipped_, world, log),
        stop_(world) {}

  void connect();
  void wrap();
  void restore();
  int loop();
  void disconnect();

 private:
  YokeStepResult run_step(const Batch& batch, int64_t step, double lr, uint32_t flags);
  YokeStepResult call_backend(const YokeStepArgs& args);
  void warn_about_memory();
  void evaluate_and_save(int64_t step);
  std::optional<double> evaluate(int64_t step);

  const Job& job_;
  const RunConfig& run_;
  const RunPlace& place_;
  World& world_;
  Log& log_;
  Position& position_;
  const Mesh mesh_;
  const SampleAssignment assignment_;
  const SampleSource samples_;

  BackendEvents events_;                   // spans and metrics of the backend
  std::optional<HostServices> services_;   // connect
  std::optional<BackendContext> context_;  // connect
  int64_t bytes_before_model_ = 0;         // connect
  RunVerification verification_;
  std::unique_ptr<TorchModelHost> host_;  // wrap: the model as structs of the contract
  std::optional<WrappedModel> model_;     // wrap: the model as wrapped by the backend
  StepResults results_;
  SkippedSteps skipped_;
  Checkpointing checkpoints_;
  StopAgreement stop_;
  std::optional<MetricsReporter> reporter_;  // restore
};

void Training::connect() {
  world_.agree("plan", fingerprint(job_.plan->plan()));
  // With device = auto, each rank has chosen its device independently.
  world_.agree("device", job_.on_cuda ? "cuda" : "cpu");
  world_.set_mesh(mesh_);
  if (Member* member = world_.member())
    member->set_pp_rank(mesh_.coordinate(world_.rank(), YOKE_PP));

  services_.emplace(
      world_,
      [this](int32_t level, const std::string& text) { log_.write(level, text); },
      &cancel_flag(),
      job_.inner.get(),
      &events_);
  context_.emplace(job_.backend.init(init_args(job_, *services_)));
  bytes_before_model_ = private_bytes();
}

void Training::wrap() {
  host_ = make_model(job_, &verification_.probe(), world_.device());
  model_.emplace(context_->wrap_model(host_->model()));
}

void Training::restore() {
  position_ = checkpoints_.restore(*model_, host_->summary());
  verification_.start(place_.dir, *model_, host_->summary());
  const auto stages = costs_of_stages(*model_, host_->summary(), mesh_, world_);
  warn_about_memory();
  reporter_.emplace(job_, place_.dir, stages, world_, log_, position_);
  if (verification_.records_state(position_.step)) checkpoints_.save(*model_, position_);
}

void Training::warn_about_memory() {
  const RankDevice* const device = world_.device();
  if (device == nullptr) return;
  const std::string warning = memory_warning(
      total_bytes(model_->wrap_result()), device->memory(), device_name(device->device().index()));
  if (!warning.empty()) log_.warning(warning);
}

// Returns what a meter has measured from its construction until now.
std::optional<ProductUse> product_use(const std::optional<ops::ProductMeter>& meter) {
  if (!meter) return std::nullopt;
  const double seconds = meter->seconds();
  ProductUse use{.percent = 100 * meter->product_seconds() / seconds,
                 .rounding_percent = 100 * meter->rounding_seconds() / seconds};
  if (const auto numbers = meter->rounded()) {
    use.rounded = numbers->all;
    use.largest = numbers->largest;
    use.zeroed = numbers->zeroed;
  }
  return use;
}

// Returns the signal that stopped the loop early; 0 = none.
int Training::loop() {
  BatchLoader loader(samples_, job_.data.train, assignment_, world_.device());
  // LibTorch has one profiler per process. If ranks are threads, only rank 0 records.
  const bool traced = world_.rank() == 0 || !world_.in_threads();
  StepTrace trace(
      traced ? run_.profile : ProfileConfig{}, place_.dir, world_.rank(), log_, events_);

  const int64_t first_step = position_.step;
  while (position_.step < run_.train.steps && !stop_.stop_now()) {
    const int64_t step = position_.step + 1;
    world_.set_step(step);
    trace.before(step);
    const std::unique_ptr<Batch> batch = loader.load(position_.next_sample);
    batch->require_targets();
    const double lr = learning_rate(run_.train, run_.lr_schedule, step);
    verification_.before(step, *batch);
    std::optional<ops::ProductMeter> meter;
    if (reporter_->measures_products(step)) meter.emplace();
    const YokeStepResult result = run_step(*batch, step, lr, 0);  // the backend's step()
    const std::optional<ProductUse> products = product_use(meter);
    meter.reset();
    const bool skipped = skipped_.after(step, result);
    position_.advance(assignment_.global_batch(), skipped);
    reporter_->count_step(batch->tokens());
    if (!skipped) {
      trace.after(step);
      reporter_->step({step, lr, skipped_.total(), results_, events_, products});
    }
    verification_.after(step, result, *batch);
    reporter_->require_same_results(results_);
    if (!skipped) evaluate_and_save(step);
    // Saving and recording are not part of the speed of steps.
    if (checkpoints_.saved(position_) || run_.record.facts) reporter_->restart_interval();
  }

  if (run_.checkpoint.every > 0) checkpoints_.save_unless_saved(*model_, position_);
  if (position_.step > first_step) reporter_->report_memory(bytes_before_model_);
  if (position_.step == run_.train.steps) reporter_->finish();
  return stop_.signal();
}

// Evaluates and saves if that is due after `step`. Evaluates after the last step, too, which loop()
// saves. Also saves after the best evaluation.
void Training::evaluate_and_save(int64_t step) {
  const bool last = run_.eval.every > 0 && step == run_.train.steps;
  const std::optional<double> loss =
      last || due(step, run_.eval.every) ? evaluate(step) : std::nullopt;
  const bool best = loss && checkpoints_.evaluated(position_, *loss);
  if (best || due(step, run_.checkpoint.every) || verification_.records_state(step))
    checkpoints_.save(*model_, position_);
}

void Training::disconnect() {
  // NCCL does not close a communicator that a recorded step (a CUDA graph) of the model uses.
  model_.reset();
  world_.shutdown();
  checkpoints_.finish_removal();  // no other rank waits for this
}

YokeStepResult Training::run_step(const Batch& batch, int64_t step, double lr, uint32_t flags) {
  YokeStepArgs args{};
  args.header = YOKE_HEADER(YokeStepArgs, YOKE_ID_STEP_ARGS);
  args.batch = &batch.get();
  args.step = step;
  args.lr = lr;
  args.flags = flags;
  if (flags == 0) args.loss_scale = skipped_.loss_scale();
  const YokeStepResult result = call_backend(args);
  results_.check(args, result, batch.get().token_weight);
  return result;
}

// On a device, a failed collective does not stop the step: the step fails later with a different
// error, or continues with garbage. The error of the collective is the cause, so it takes
// precedence.
YokeStepResult Training::call_backend(const YokeStepArgs& args) {
  try {
    const YokeStepResult result = model_->step(args);
    world_.require_alive();
    return result;
  } catch (const Error&) {
    world_.require_alive();
    throw;
  }
}

// Runs the model forward on whole global batches of the held-out part, which are the same in every
// layout. An incomplete last batch is left out, and a batch without any target that counts adds
// nothing. Returns the mean loss, or nothing if the run stops before all batches are done.
std::optional<double> Training::evaluate(int64_t step) {
  const auto begin = std::chrono::steady_clock::now();
  const int64_t size = assignment_.global_batch();
  int64_t batches = job_.data.held_out.num_windows() / size;
  if (run_.eval.batches > 0) batches = std::min(batches, run_.eval.batches);
  BatchLoader loader(samples_, job_.data.held_out, assignment_, world_.device());
  double loss = 0, targets = 0;
  for (int64_t b = 0; b < batches; ++b) {
    const std::unique_ptr<Batch> batch = loader.load(b * size);
    if (batch->targets() == 0) continue;
    // The evaluation after the last step completes the run.
    if (step < run_.train.steps && stop_.stop_now()) {
      if (world_.rank() == 0)
        log_.info(
            concat("the evaluation after step ", step, " was left out, because the run stops"));
      return std::nullopt;
    }
    reporter_->show_evaluation(b, batches);
    const YokeStepResult result = run_step(*batch, step, 0, YOKE_STEP_FORWARD_ONLY);
    loss += result.loss_sum;
    targets += result.loss_weight;
  }
  if (targets == 0)
    throw Error(YOKE_INVALID_ARGUMENT,
                concat("no target of the ", batches, " batches of evaluation data counts") +
                    "; give evaluation data with targets that its label mask does not leave out, "
                    "or raise eval.batches");
  reporter_->evaluation(step, loss / targets, static_cast<int64_t>(targets), begin);
  return loss / targets;
}

}  // namespace

int train(const Job& job, const RunPlace& place, World& world, Log& log, Position& position) {
  Training training(job, place, world, log, position);
  training.connect();
  training.wrap();
  training.restore();
  const int signal = training.loop();
  training.disconnect();
  return signal;
}

}  // namespace yoke
