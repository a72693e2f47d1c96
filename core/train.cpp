#include "core/train.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "core/backend/services.hpp"
#include "core/run/batch_feed.hpp"
#include "core/run/learning_rate.hpp"
#include "core/run/recorder.hpp"
#include "core/run/run_proof.hpp"
#include "core/run/stop.hpp"
#include "core/run/trace.hpp"

namespace yoke {
namespace {

bool due(int64_t step, int64_t every) {
  return every > 0 && step % every == 0;
}

// What a rank trains with.
struct Rank {
  const Job& job;
  World& world;
  WrappedModel& model;
  const Deal deal;
};

// On a device a collective that failed lets the step fail, or go on with garbage.
YokeStepResult call_step(const Rank& rank, const YokeStepArgs& args) {
  try {
    const YokeStepResult result = rank.model.step(args);
    rank.world.require_alive();
    return result;
  } catch (const Error&) {
    rank.world.require_alive();
    throw;
  }
}

YokeStepResult run_step(
    const Rank& rank, const Batch& batch, int64_t step, double lr, uint32_t flags) {
  YokeStepArgs args{};
  args.header = YOKE_HEADER(YokeStepArgs, YOKE_ID_STEP_ARGS);
  args.batch = &batch.get();
  args.step = step;
  args.lr = lr;
  args.flags = flags;
  const YokeStepResult result = call_step(rank, args);
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
void evaluate(const Rank& rank, int64_t step, Recorder& recorder) {
  const auto begin = std::chrono::steady_clock::now();
  const Job& job = rank.job;
  const int64_t samples = rank.deal.global_batch();
  int64_t batches = job.data.held_out.num_windows() / samples;
  if (job.config.run.eval.batches > 0) batches = std::min(batches, job.config.run.eval.batches);
  const Source source{job.data, job.samples};
  BatchFeed feed(source, job.data.held_out, rank.deal, rank.world.device());
  double loss = 0, weight = 0;
  for (int64_t b = 0; b < batches; ++b) {
    const auto batch = feed.take(b * samples);
    const YokeStepResult r = run_step(rank, *batch, step, 0, YOKE_STEP_FORWARD_ONLY);
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

void train(const Job& job, const RunPlace& place, World& world, Log& log, Position& at) {
  const RunConfig& run = job.config.run;
  const YokePlan& plan = job.plan->plan();
  const Mesh mesh({plan.degree[0], plan.degree[1], plan.degree[2], plan.degree[3], plan.degree[4]});
  world.agree("plan", fingerprint(plan));
  world.agree("device", job.on_cuda ? "cuda" : "cpu");  // of device = auto
  world.set_mesh(mesh);

  // The backend makes its context, then takes the model.
  HostServices services(
      world,
      [&](int32_t level, const std::string& text) { log.write(level, text); },
      &cancel_flag(),
      job.inner.get());
  BackendContext context = job.backend.init(init_args(job, services));
  RunProof proof(job, mesh, world);
  const auto model_host = make_model(job, &proof.witness(), world.device());
  std::optional<WrappedModel> wrapped(context.wrap_model(model_host->model()));
  WrappedModel& model = *wrapped;

  Checkpointing checkpoints(job, place, world, log);
  at = checkpoints.restore(model, model_host->summary());
  proof.start(place.dir, model, model_host->summary());
  Recorder recorder(job, place.dir, model.wrap_result(), world, log, at);
  const Deal deal{
      mesh.data_rank(world.rank()), mesh.data_ranks(), job.plan->accumulation(), plan.micro_batch};
  const Rank rank{job, world, model, deal};

  if (proof.keeps_state(at.step)) checkpoints.save(model, at);

  const Source source{job.data, job.samples};
  BatchFeed feed(source, job.data.train, deal, world.device());
  StopAgreement stop(world);
  // The profiler is one per process.
  const bool traced = world.rank() == 0 || !world.in_threads();
  StepTrace trace(traced ? run.profile : ProfileConfig{}, place.dir, world.rank(), log);
  while (at.step < run.train.steps && !stop.stop_before(at.step + 1)) {
    trace.before(at.step + 1);
    const auto next = feed.take(at.next_sample);
    const Batch& batch = *next;
    const double lr = learning_rate(run.train, at.step + 1);
    proof.before(at.step + 1, batch);
    const YokeStepResult result = run_step(rank, batch, at.step + 1, lr, 0);
    require_finite(result, at.step + 1);
    at.advance(deal.global_batch());
    trace.after(at.step);

    recorder.step(at.step, result, lr, batch.tokens());
    proof.after(at.step, result, batch);
    if (due(at.step, run.eval.every)) evaluate(rank, at.step, recorder);
    if (due(at.step, run.checkpoint.every) || proof.keeps_state(at.step))
      checkpoints.save(model, at);
    if (checkpoints.saved(at) || run.record.facts) recorder.restart_interval();
  }

  if (run.checkpoint.every > 0) checkpoints.save_unless_saved(model, at);
  if (at.step == run.train.steps) recorder.finish();
  wrapped.reset();  // NCCL keeps a communicator until no recorded step uses it
  world.shutdown();
}

}  // namespace yoke
