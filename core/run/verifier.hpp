// Verifies steps while a run trains (verify.every): after the selected steps, the replicas of a
// parameter must have equal bits, and the data ranks must have trained on disjoint parts of the
// whole global batch. With record.facts it also collects, on every step, what `yoke compare` needs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/backend/loaded_backend.hpp"
#include "core/comm/world.hpp"
#include "core/run/batch.hpp"
#include "core/verify/input_probe.hpp"
#include "core/verify/rank_report.hpp"

namespace yoke {

// The reports of all ranks about one step, and the result of checking them. Equal on every rank.
struct StepReport {
  std::vector<RankReport> ranks;
  std::vector<uint64_t> param_hashes;  // hashes of whole parameters in model order, if requested
  std::optional<Violation> violation;
};

struct VerifierOptions {
  int64_t every = 0;           // interval in steps; 0 = never
  bool with_hashes = false;    // verify every step, with hashes of all parameters
  bool replicas_equal = true;  // false: the backend declares YOKE_LOCAL_UPDATES
};

// One per rank, used by the thread that trains.
class Verifier {
 public:
  Verifier(const VerifierOptions& options, const Mesh& mesh, World& world);

  // Returns the probe, which must be attached to the model before the backend wraps it.
  InputProbe& probe() { return probe_; }
  // Returns whether `step` must be verified.
  bool due(int64_t step) const;

  // Call after wrap_model, before the first examine() or after(). Both arguments must outlive this
  // object.
  void set_model(WrappedModel& model, const YokeModelSummary& summary);
  // Examines the current state, without samples. Collective.
  StepReport examine();
  // Call before and after a step that is due. before() fingerprints the batch, because a backend
  // may change it during the step. after() is collective and returns the same report on every rank.
  void before(const Batch& batch);
  StepReport after(const Batch& batch);

 private:
  void find_replicas();
  void hash_state(RankReport& report);
  StepReport exchange(RankReport mine, const GlobalBatch& batch);

  const VerifierOptions options_;
  const Mesh mesh_;
  World& world_;
  InputProbe probe_;
  WrappedModel* model_ = nullptr;
  RankReport current_;                    // this rank's report about the current step
  std::map<std::string, size_t> index_;   // index of each parameter by its name
  std::unique_ptr<ReplicaMap> replicas_;  // made on the first verified step
};

// Throws an Error(DATA_LOSS) that names the rank, the tensor and the remedy.
[[noreturn]] void stop_for(const Violation& violation, int64_t step);

}  // namespace yoke
