// Saves and restores a wrapped model over all ranks: the backend's pieces of state on one side, the
// neutral checkpoint on the other.
#pragma once

#include <cstdint>
#include <string>

#include "core/backend/loaded_backend.hpp"
#include "core/base/log.hpp"
#include "core/checkpoint/checkpoint.hpp"
#include "core/comm/world.hpp"
#include "core/run/job.hpp"
#include "core/run/run_place.hpp"

namespace yoke {

// How far a run is.
struct Position {
  int64_t step = 0;         // optimizer steps done
  int64_t next_sample = 0;  // global index of the first sample not yet trained on

  void advance(int64_t global_batch) {
    step += 1;
    next_sample += global_batch;
  }
};

// Calls visit for every local piece of state; op: YOKE_CHECKPOINT_... Collective but for DESCRIBE.
void visit_pieces(WrappedModel& model, int32_t op, const PieceVisitor& visit);

class Checkpointing {
 public:
  Checkpointing(const Job& job, const RunPlace& place, World& world, Log& log);

  // Loads the checkpoint to resume from, if any. Collective. Throws Error: DATA_LOSS if it is
  // damaged, FAILED_PRECONDITION if it is of another model or beyond the last step.
  Position restore(WrappedModel& model, const YokeModelSummary& summary);

  // Writes <run folder>/checkpoints/step-NNNNNNNN and removes old ones. Collective.
  void save(WrappedModel& model, const Position& at);
  bool saved(const Position& at) const { return at.step == saved_step_; }
  // The same unless the last save was of this step.
  void save_unless_saved(WrappedModel& model, const Position& at);

 private:
  SaveGroup group();

  const Job& job_;
  std::string folder_;  // <run folder>/checkpoints
  std::string resume_;
  World& world_;
  Log& log_;
  int64_t saved_step_ = -1;
};

}  // namespace yoke
