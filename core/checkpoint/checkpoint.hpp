// The neutral checkpoint: one format for all backends, layouts and world sizes. No LibTorch.
//
//   step-00001000/ model.safetensors (HF names; several files + model.safetensors.index.json when large),
//                  config.json, optimizer-RRRRR.safetensors, manifest.json
//
// Written into a temporary folder, fsynced, then renamed: the rename is the commit.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "yoke/parallel_backend.h"

namespace yoke {

struct CheckpointInfo {
  std::string path;
  int64_t step = 0;
  int64_t next_sample = 0;      // global sample index of the first sample not yet trained on
  std::string config_digest;    // of what must be equal to resume (checkpoint.resume = auto)
  bool finished = false;        // the run's last step
};

// What the ranks of a save must do together; the host gives it over its communicator, tests over threads.
struct SaveGroup {
  int32_t rank = 0;
  int32_t world_size = 1;
  std::function<void()> barrier;
  // Every rank's text on rank 0, in rank order ({} elsewhere). Collective.
  std::function<std::vector<std::string>(const std::string&)> gather;
  // true if every rank says true. Collective.
  std::function<bool(bool)> all;
};

// One save: visit() takes every local piece (replica 0 is written), finish() commits. A failure on any rank
// abandons the attempt on all, throws, and leaves older checkpoints untouched.
class CheckpointWriter {
 public:
  CheckpointWriter(const std::string& folder, const CheckpointInfo& info, const std::string& hf_config_json,
                   const SaveGroup& group);
  ~CheckpointWriter();
  void visit(const YokePiece& piece);
  std::string finish();  // path of the committed checkpoint. Collective.

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// One load: visit() fills any flat range of any tensor, whatever wrote it.
class CheckpointReader {
 public:
  explicit CheckpointReader(const std::string& path);  // reads and checks the manifest; DATA_LOSS if damaged
  ~CheckpointReader();
  const CheckpointInfo& info() const;
  // Throws NOT_FOUND / FAILED_PRECONDITION listing the first differences of names and shapes when the
  // checkpoint is of another model.
  void check_model(const YokeModelSummary& model) const;
  void visit(const YokePiece& piece) const;
  // Checks every file's size and checksum; DATA_LOSS naming file and tensor.
  void verify() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Newest checkpoint of a run folder that verifies; damaged ones are passed by and named to `warn`.
// Throws NOT_FOUND if there is none.
CheckpointInfo newest_checkpoint(const std::string& folder, const std::function<void(const std::string&)>& warn);
// Removes all but the newest `keep` committed checkpoints, and temporary folders of dead saves.
void prune_checkpoints(const std::string& folder, int64_t keep);

}  // namespace yoke
