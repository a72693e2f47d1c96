// Runs the verifier on the steps that verify.every selects, and on every step if record.facts is
// set. With record.facts, the results are written to facts.jsonl; without it, a violation ends the
// run.
#pragma once

#include <memory>
#include <string>

#include "core/run/job.hpp"
#include "core/run/record_file.hpp"
#include "core/run/verifier.hpp"

namespace yoke {

// One per rank, used by the thread that trains.
class RunVerification {
 public:
  RunVerification(const Job& job, const Mesh& mesh, World& world);

  // Returns the probe, which must be attached to the model before the backend wraps it.
  InputProbe& probe() { return verifier_.probe(); }

  // Call after wrap_model. Records the initial state if record.facts is set. Collective.
  void start(const std::string& run_dir, WrappedModel& model, const YokeModelSummary& summary);

  // Call before and after every step, with its batch. after() is collective; it throws
  // Error(DATA_LOSS) for a violation, unless the violation is recorded for `yoke compare`.
  void before(int64_t step, const Batch& batch);
  void after(int64_t step, const YokeStepResult& result, const Batch& batch);

  // Returns whether record.states requests a checkpoint of the state after `step`.
  bool records_state(int64_t step) const;

 private:
  const Job& job_;
  World& world_;
  Verifier verifier_;
  std::unique_ptr<RecordFile> record_;  // rank 0, if record.facts is set
};

}  // namespace yoke
