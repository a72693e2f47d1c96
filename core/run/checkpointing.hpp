// Saves and restores a wrapped model over all ranks. Transfers pieces of state between the backend
// and the checkpoint, whose format does not depend on the layout.
#pragma once

#include <cstdint>
#include <future>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "core/backend/loaded_backend.hpp"
#include "core/base/log.hpp"
#include "core/checkpoint/checkpoint.hpp"
#include "core/comm/world.hpp"
#include "core/run/job.hpp"
#include "core/run/run_place.hpp"
#include "core/run/skipped_steps.hpp"

namespace yoke {

// The progress of a run.
struct Position {
  int64_t step = 0;         // optimizer steps done
  int64_t next_sample = 0;  // global number of the first sample not yet trained on

  // Call after a step. A skipped step is not counted: the next one has its number, and new samples.
  void advance(int64_t global_batch, bool skipped = false) {
    step += skipped ? 0 : 1;
    next_sample += global_batch;
  }
};

// Calls visit for every piece of state on this rank. op: YOKE_CHECKPOINT_SAVE, _LOAD or _DESCRIBE.
// Views may be memory of a device, and are ready on the current stream; they are valid for what
// visit queues there. Collective, except for DESCRIBE.
void visit_pieces(WrappedModel& model, int32_t op, const PieceVisitor& visit);

// The same for visitors that need host memory: visit gets a copy of a piece on a device, valid for
// the call, which is copied back after LOAD. With SAVE, pieces with a replica above 0 are skipped,
// also in host memory, because no checkpoint contains them.
void visit_on_host(WrappedModel& model, int32_t op, const PieceVisitor& visit);

// Returns the names of the model's parameters and the shapes that they have in files. summary: of
// the job's model.
Shapes shapes_in_files(const Job& job, const YokeModelSummary& summary);

// Returns what the state must contain if this backend trains this model. summary: of the job's
// model.
StateContents contents_of(const Job& job, const YokeModelSummary& summary);

// One per rank. Not thread-safe.
class Checkpointing {
 public:
  // skipped: its state is saved and restored with that of the model.
  Checkpointing(
      const Job& job, const RunPlace& place, SkippedSteps& skipped, World& world, Log& log);

  // Checks that the state of the wrapped model is complete. Then loads the checkpoint from which
  // the run resumes, if there is one, and returns its position; else returns the start. Collective.
  // Throws Error: INTERNAL if the backend does not report the whole state, DATA_LOSS if the
  // checkpoint is damaged, FAILED_PRECONDITION if it belongs to a different model.
  Position restore(WrappedModel& model, const YokeModelSummary& summary);

  // Call after an evaluation, with its mean loss, which the next checkpoint of this step records.
  // Returns whether to save now, because no earlier checkpoint of the run has a loss as low, and
  // checkpoint.best is true.
  bool evaluated(const Position& position, double loss);

  // Writes <run folder>/checkpoints/step-NNNNNNNN, and starts to remove old ones in a thread of
  // rank 0. Collective. Throws Error if it cannot be written; then the previous checkpoint is still
  // complete.
  void save(WrappedModel& model, const Position& position);
  // Returns whether the last save was at this step, or the restore if it was of a checkpoint in the
  // run folder.
  bool saved(const Position& position) const { return position.step == saved_step_; }
  // Saves unless saved() is true. Collective.
  void save_unless_saved(WrappedModel& model, const Position& position);
  // Waits until old checkpoints have been removed. Without this call, for instance after a failure,
  // the next save removes them. Returns at once on ranks other than 0. Not collective.
  void finish_removal();

 private:
  std::vector<std::string> exchange(const std::string& mine);
  SaveGroup group();
  void find_best();
  void start_removal();
  void read_ahead(WrappedModel& model, const PieceVisitor& read);
  void load(WrappedModel& model, const CheckpointReader& reader);

  const Job& job_;
  std::string folder_;      // <run folder>/checkpoints
  std::string resume_;      // checkpoint to start from; "" = none
  StateContents contents_;  // filled by restore()
  SkippedSteps& skipped_;
  std::string data_;  // data_contents() of the job, on rank 0 only
  // Files to write beside the weights, by name; filled on rank 0 only.
  std::map<std::string, std::string> texts_;
  World& world_;
  Log& log_;
  std::future<void> removal_;  // removal of old checkpoints; on rank 0 only
  int64_t saved_step_ = -1;
  int64_t evaluated_step_ = -1;                                 // step of the last evaluation
  double eval_loss_ = 0;                                        // mean loss of the last evaluation
  double best_loss_ = std::numeric_limits<double>::infinity();  // lowest loss of a checkpoint
};

}  // namespace yoke
