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
#include "core/comm/world.hpp"
#include "core/run/batch.hpp"
#include "core/verify/evidence.hpp"
#include "core/verify/witness.hpp"

namespace yoke {

// What all ranks together know about a step.
struct Findings {
  std::vector<RankEvidence> ranks;
  std::vector<uint64_t> hashes;  // of whole parameters, in the order of the model; if wanted
  std::optional<Breach> breach;
};

struct VerifierOptions {
  int64_t every = 0;           // steps between proofs, 0 = never
  bool with_hashes = false;    // at every step, and hashes too
  bool replicas_equal = true;  // false: the backend does not promise it (YOKE_LOCAL_UPDATES)
};

class Verifier {
 public:
  Verifier(const VerifierOptions& options, const Mesh& mesh, World& world);

  Witness& witness() { return witness_; }
  bool due(int64_t step) const;

  // After wrap_model. summary: of the model.
  void take(WrappedModel& model, const YokeModelSummary& summary);
  // Of the state as it is now, without samples. Collective.
  Findings examine();
  // Around a step that is due, with its batch, which a backend may spoil. after() is collective;
  // the same findings on every rank.
  void before(const Batch& batch);
  Findings after(const Batch& batch);

 private:
  void find_replicas();
  void hash_state(RankEvidence& evidence);
  Findings exchange(RankEvidence mine, const GlobalBatch& batch);

  const VerifierOptions options_;
  const Mesh mesh_;
  World& world_;
  Witness witness_;
  WrappedModel* model_ = nullptr;
  RankEvidence dealt_;                    // of the step under way
  std::map<std::string, size_t> index_;   // of parameters
  std::unique_ptr<ReplicaMap> replicas_;  // made at the first proof
};

// Throws Error(DATA_LOSS) naming rank, tensor and what to do.
[[noreturn]] void stop_for(const Breach& breach, int64_t step);

}  // namespace yoke
