#include "core/run/run_proof.hpp"

#include <algorithm>

namespace yoke {

RunProof::RunProof(const Job& job, const Mesh& mesh, World& world)
    : job_(job),
      world_(world),
      verifier_({job.config.run.verify.every,
                 job.config.run.record.facts,
                 (job.backend.description().traits & YOKE_LOCAL_UPDATES) == 0},
                mesh,
                world) {}

void RunProof::start(const std::string& run_dir,
                     WrappedModel& model,
                     const YokeModelSummary& summary) {
  verifier_.take(model, summary);
  if (!job_.config.run.record.facts) return;
  const Findings found = verifier_.examine();
  if (world_.rank() != 0) return;
  facts_ =
      std::make_unique<FactsFile>(run_dir + "/facts.jsonl", job_, summary, model.wrap_result());
  facts_->start(found);
}

void RunProof::before(int64_t step, const Batch& batch) {
  if (verifier_.due(step)) verifier_.before(batch);
}

void RunProof::after(int64_t step, const YokeStepResult& result, const Batch& batch) {
  if (!verifier_.due(step)) return;
  const Findings found = verifier_.after(batch);
  if (facts_) facts_->step(step, result, world_.counts_by_operation(), found);
  if (found.breach && !job_.config.run.record.facts) stop_for(*found.breach, step);
}

bool RunProof::keeps_state(int64_t step) const {
  const std::vector<int64_t>& steps = job_.config.run.record.states;
  return std::find(steps.begin(), steps.end(), step) != steps.end();
}

}  // namespace yoke
