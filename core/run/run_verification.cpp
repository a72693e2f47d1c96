#include "core/run/run_verification.hpp"

#include <algorithm>

#include "core/run/skipped_steps.hpp"

namespace yoke {
namespace {

VerifierOptions verifier_options(const Job& job) {
  const RunConfig& run = job.config.run;
  const uint32_t traits = traits_of(job.backend, *job.inner);
  return {.every = run.verify.every,
          .with_hashes = run.record.facts,
          .replicas_equal = (traits & YOKE_LOCAL_UPDATES) == 0};
}

}  // namespace

RunVerification::RunVerification(const Job& job, const Mesh& mesh, World& world)
    : job_(job), world_(world), verifier_(verifier_options(job), mesh, world) {}

void RunVerification::start(const std::string& run_dir,
                            WrappedModel& model,
                            const YokeModelSummary& summary) {
  verifier_.set_model(model, summary);
  if (!job_.config.run.record.facts) return;
  const StepReport report = verifier_.examine();
  if (world_.rank() != 0) return;
  record_ =
      std::make_unique<RecordFile>(run_dir + "/facts.jsonl", job_, summary, model.wrap_result());
  record_->start(report);
}

void RunVerification::before(int64_t step, const Batch& batch) {
  if (verifier_.due(step)) verifier_.before(batch);
}

void RunVerification::after(int64_t step, const YokeStepResult& result, const Batch& batch) {
  if (!verifier_.due(step)) return;
  const StepReport report = verifier_.after(batch);
  // A skipped step has changed nothing and comes again.
  if (record_ && !is_skipped(result))
    record_->step(step, result, world_.counts_by_operation(), report);
  if (report.violation && !job_.config.run.record.facts) stop_for(*report.violation, step);
}

bool RunVerification::records_state(int64_t step) const {
  const std::vector<int64_t>& steps = job_.config.run.record.states;
  return std::find(steps.begin(), steps.end(), step) != steps.end();
}

}  // namespace yoke
