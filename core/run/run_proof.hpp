// The proof and the record of one run: the verifier at the steps where it is due, what it finds in
// facts.jsonl or, if it must not be, as the end of the run.
#pragma once

#include <memory>
#include <string>

#include "core/run/facts.hpp"
#include "core/run/job.hpp"
#include "core/run/verifier.hpp"

namespace yoke {

class RunProof {
 public:
  RunProof(const Job& job, const Mesh& mesh, World& world);
  Witness& witness() { return verifier_.witness(); }

  // After wrap_model. Collective.
  void start(const std::string& run_dir, WrappedModel& model, const YokeModelSummary& summary);
  // Around every step, with its batch. after() is collective; throws Error(DATA_LOSS) for a breach, unless it is
  // recorded for `yoke compare`.
  void before(int64_t step, const Batch& batch);
  void after(int64_t step, const YokeStepResult& result, const Batch& batch);

  // Is the state after this step wanted (record.states)?
  bool keeps_state(int64_t step) const;

 private:
  const Job& job_;
  World& world_;
  Verifier verifier_;
  std::unique_ptr<FactsFile> facts_;  // rank 0, if wanted
};

}  // namespace yoke
