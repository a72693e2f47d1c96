#include "core/run/run_verification.hpp"

#include <algorithm>

namespace yoke {

RunVerification::RunVerification(const Job& job, const Mesh& mesh, CommWorld& world)
    : job_(job),
      world_(world),
      verifier_({job.config.run.verify.every,
                 job.config.run.record.facts,
                 (job.backend.description().traits & YOKE_LOCAL_UPDATES) == 0},
                mesh,
                world) {}

void RunVerification::start(const std::string& run_dir,
                     WrappedModel& model,
                     const YokeModelSummary& summary) {
  verifier_.take(model, summary);
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
  if (record_) record_->step(step, result, world_.counts_by_operation(), report);
  if (report.violation && !job_.config.run.record.facts) stop_for(*report.violation, step);
}

bool RunVerification::keeps_state(int64_t step) const {
  const std::vector<int64_t>& steps = job_.config.run.record.states;
  return std::find(steps.begin(), steps.end(), step) != steps.end();
}

}  // namespace yoke
