#include "core/train.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "core/backend/services.hpp"
#include "core/batch.hpp"
#include "core/recorder.hpp"
#include "core/schedule.hpp"
#include "core/stop.hpp"
#include "core/trace.hpp"
#include "core/verify/run_proof.hpp"

namespace yoke {
namespace {

bool due(int64_t step, int64_t every) {
  return every > 0 && step % every == 0;
}

YokeStepResult run_step(
    WrappedModel& model, const Batch& batch, int64_t step, double lr, uint32_t flags) {
  YokeStepArgs args{};
  args.header = YOKE_HEADER(YokeStepArgs, YOKE_ID_STEP_ARGS);
  args.batch = &batch.get();
  args.step = step;
  args.lr = lr;
  args.flags = flags;
  const YokeStepResult result = model.step(args);
  if (result.loss_weight == batch.get().token_weight) return result;
  throw Error(YOKE_INTERNAL,
              "step " + std::to_string(step) + ": the loss is the sum over " +
                  std::to_string(result.loss_weight) + " targets, but the batch has " +
                  std::to_string(batch.get().token_weight) +
                  "; loss_weight of the model and the number of targets in its samples must agree",
              -1,
              step);
}

void require_finite(const YokeStepResult& r, int64_t step) {
  if (std::isfinite(r.loss_sum) && !std::isinf(r.grad_norm)) return;
  throw Error(YOKE_DATA_LOSS,
              "step " + std::to_string(step) + ": loss " +
                  std::to_string(r.loss_sum / r.loss_weight) + ", grad_norm " +
                  std::to_string(r.grad_norm) +
                  "; both must be finite: lower train.lr, or continue from a checkpoint before it",
              -1,
              step);
}

// Whole global batches of the held-out tail, the same ones in every layout.
void evaluate(
    const Job& job, WrappedModel& model, const Deal& deal, int64_t step, Recorder& recorder) {
  const auto begin = std::chrono::steady_clock::now();
  int64_t batches = job.data.held_out.num_windows() / deal.global_batch();
  if (job.config.run.eval.batches > 0) batches = std::min(batches, job.config.run.eval.batches);
  const Source source{job.data, job.samples};
  double loss = 0, weight = 0;
  for (int64_t b = 0; b < batches; ++b) {
    const Batch batch(source, job.data.held_out, b * deal.global_batch(), deal);
    const YokeStepResult r = run_step(model, batch, step, 0, YOKE_STEP_FORWARD_ONLY);
    loss += r.loss_sum;
    weight += r.loss_weight;
  }
  recorder.evaluation(step, loss / weight, static_cast<int64_t>(weight), begin);
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

}  // namespace

void train(const Job& job, const RunPlace& place, CommWorld& world, Log& log, Position& at) {
  const RunConfig& run = job.config.run;
  const YokePlan& plan = job.plan->plan();
  const Mesh mesh({plan.degree[0], plan.degree[1], plan.degree[2], plan.degree[3], plan.degree[4]});
  world.agree("plan", fingerprint(plan));
  world.set_mesh(mesh);

  // The backend makes its context, then takes the model.
  HostServices services(
      world,
      [&](int32_t level, const std::string& text) { log.write(level, text); },
      &cancel_flag(),
      {YOKE_DEVICE_CPU, 0},
      job.inner.get());
  BackendContext context = job.backend.init(init_args(job, services));
  RunProof proof(job, mesh, world);
  const auto model_host = make_model(job, &proof.witness());
  WrappedModel model = context.wrap_model(model_host->model());

  Checkpointing checkpoints(job, place, world, log);
  at = checkpoints.restore(model, model_host->summary());
  proof.start(place.dir, model, model_host->summary());
  Recorder recorder(job, place.dir, model.wrap_result(), world, log, at);
  const Deal deal{
      mesh.data_rank(world.rank()), mesh.data_ranks(), job.plan->accumulation(), plan.micro_batch};

  if (proof.keeps_state(at.step)) checkpoints.save(model, at);

  const Source source{job.data, job.samples};
  StopAgreement stop(world);
  // The profiler is one per process.
  const bool traced = world.rank() == 0 || !world.in_threads();
  StepTrace trace(traced ? run.profile : ProfileConfig{}, place.dir, world.rank(), log);
  while (at.step < run.train.steps && !stop.stop_before(at.step + 1)) {
    trace.before(at.step + 1);
    const Batch batch(source, job.data.train, at.next_sample, deal);
    const double lr = learning_rate(run.train, at.step + 1);
    proof.before(at.step + 1, batch);
    const YokeStepResult result = run_step(model, batch, at.step + 1, lr, 0);
    require_finite(result, at.step + 1);
    at.advance(deal.global_batch());
    trace.after(at.step);

    recorder.step(at.step, result, lr, batch.tokens());
    proof.after(at.step, result, batch);
    if (due(at.step, run.eval.every)) evaluate(job, model, deal, at.step, recorder);
    if (due(at.step, run.checkpoint.every) || proof.keeps_state(at.step))
      checkpoints.save(model, at);
    if (checkpoints.saved(at) || run.record.facts) recorder.restart_interval();
  }

  if (run.checkpoint.every > 0) checkpoints.save_unless_saved(model, at);
  if (at.step == run.train.steps) recorder.finish();
  world.shutdown();
}

}  // namespace yoke
