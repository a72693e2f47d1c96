// The always-on proof of a run (verify.every): after chosen steps, replicas of a parameter have
// equal bits, and the data ranks trained on disjoint parts of the whole global batch. Collects, at
// every step, what `yoke compare` judges by (record.facts).
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/backend/loaded_backend.hpp"
#include "core/comm/communicator.hpp"
#include "core/run/batch.hpp"
#include "core/verify/rank_report.hpp"
#include "core/verify/input_probe.hpp"

namespace yoke {

// What all ranks together know about a step.
struct StepReport {
  std::vector<RankReport> ranks;
  std::vector<uint64_t> hashes;  // of whole parameters, in the order of the model; if wanted
  std::optional<Violation> violation;
};

struct VerifierOptions {
  int64_t every = 0;           // steps between proofs, 0 = never
  bool with_hashes = false;    // at every step, and hashes too
  bool replicas_equal = true;  // false: the backend does not promise it (YOKE_LOCAL_UPDATES)
};

class Verifier {
 public:
  Verifier(const VerifierOptions& options, const Mesh& mesh, CommWorld& world);

  InputProbe& probe() { return probe_; }
  bool due(int64_t step) const;

  // After wrap_model. summary: of the model.
  void take(WrappedModel& model, const YokeModelSummary& summary);
  // Of the state as it is now, without samples. Collective.
  StepReport examine();
  // Around a step that is due, with its batch, which a backend may spoil. after() is collective;
  // the same findings on every rank.
  void before(const Batch& batch);
  StepReport after(const Batch& batch);

 private:
  void find_replicas();
  void hash_state(RankReport& report);
  StepReport exchange(RankReport mine, const GlobalBatch& batch);

  const VerifierOptions options_;
  const Mesh mesh_;
  CommWorld& world_;
  InputProbe probe_;
  WrappedModel* model_ = nullptr;
  RankReport dealt_;                    // of the step under way
  std::map<std::string, size_t> index_;   // of parameters
  std::unique_ptr<ReplicaMap> replicas_;  // made at the first proof
};

// Throws Error(DATA_LOSS) naming rank, tensor and what to do.
[[noreturn]] void stop_for(const Violation& violation, int64_t step);

}  // namespace yoke
