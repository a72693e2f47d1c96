// The neutral checkpoint: one format for all backends, layouts and world sizes. No LibTorch.
//
//   step-00001000/
//     model.safetensors        whole tensors, fp32 masters (fp64 in fp64 runs), HF names; above the
//                              size limit model-0000i-of-0000n.safetensors and an index
//     config.json              HF's description of the model; absent if the family has none
//     optimizer.safetensors    whole tensors "<parameter>.<kind>" and the scalar "optimizer.step";
//                              split like the weights
//     manifest.json            step, data cursor, files, tensors, and a CRC32C of every 4 MiB
//
// Every byte is covered by a checksum. A tied parameter is stored once, under the name that the
// model gives it. A save writes into `.step-00001000.tmp-*`, syncs it and renames it: the rename is
// the commit.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/checkpoint/shapes.hpp"
#include "yoke/parallel_backend.h"

namespace yoke {

struct CheckpointInfo {
  std::string path;  // of the checkpoint's own folder; set by save and by the reader
  int64_t step = 0;
  int64_t next_sample = 0;    // global index of the first sample not yet trained on
  std::string config_digest;  // of what must be equal to resume (checkpoint.resume = auto)
  bool finished = false;      // this was the run's last step
};

// What the ranks of a save do together: the host builds it on its communicator, tests on threads.
// Both functions are collective and throw Error (UNAVAILABLE) if a peer is lost.
struct SaveGroup {
  int32_t rank = 0;
  int32_t world_size = 1;
  // Every rank's text on rank 0, in rank order; {} elsewhere.
  std::function<std::vector<std::string>(const std::string& mine)> gather;
  // Rank 0's text, on every rank.
  std::function<std::string(const std::string& mine)> from_rank0;
};

using PieceVisitor = std::function<void(const YokePiece& piece)>;
// Walks over this rank's pieces, as ParallelBackend::checkpoint does; op is
// YOKE_CHECKPOINT_DESCRIBE or YOKE_CHECKPOINT_SAVE. Throws what the backend reports.
using PieceWalk = std::function<void(int32_t op, const PieceVisitor& visit)>;

struct SaveRequest {
  std::string folder;  // of all checkpoints of the run; made if missing
  CheckpointInfo info;
  std::string hf_config_json;               // "" = no config.json
  uint64_t max_file_bytes = 5'000'000'000;  // a larger model is split; a tensor never is
};

// Saves, commits, and returns the path of the checkpoint, the same on every rank. Walks twice:
// DESCRIBE fixes the place of every piece, SAVE lets each rank write its replica-0 pieces straight
// from the views (host memory) into the shared files: nothing is buffered, no tensor is gathered.
// All ranks see the same file system. A step that was saved before is replaced in one exchange.
//
// If anything fails on any rank, all ranks throw the first failing rank's Error, the attempt is
// removed and older checkpoints stay as they were. RESOURCE_EXHAUSTED: disk full, with needed and
// free bytes. INTERNAL: the pieces do not tile a tensor. FAILED_PRECONDITION: the folder cannot be
// written, or another process is saving into it. Collective.
std::string save_checkpoint(const SaveRequest& request,
                            const SaveGroup& group,
                            const PieceWalk& walk);

// One committed checkpoint, open for reading. Any thread.
class CheckpointReader {
 public:
  // Reads the manifest and compares files, sizes and safetensors headers with it. NOT_FOUND if
  // there is no checkpoint at path, DATA_LOSS if it is damaged.
  explicit CheckpointReader(const std::string& path);
  ~CheckpointReader();
  const CheckpointInfo& info() const;
  uint64_t bytes() const;       // of all files but the manifest
  Shapes param_shapes() const;  // of the weights
  // HF's description of the model, checked against its checksum; "" = the family has none.
  std::string hf_config_json() const;
  // FAILED_PRECONDITION with the first 20 differences of names and shapes if it is of another
  // model.
  void check_model(const Shapes& model) const;
  void check_model(const YokeModelSummary& model) const { check_model(shapes_of(model)); }
  // Fills piece.view, compact host memory, with any part of any tensor, whatever wrote it,
  // and checks the checksums of what it reads. Widening bf16 -> fp32 -> fp64 is exact, narrowing
  // rounds once to nearest even; other pairs of dtypes must be equal. NOT_FOUND: no such tensor or
  // kind. FAILED_PRECONDITION: another shape or dtype. DATA_LOSS: damaged.
  void visit(const YokePiece& piece) const;
  // Reads everything; DATA_LOSS naming file, tensor and elements of the first damage.
  void verify() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The newest checkpoint in a folder of checkpoints that verifies; each newer one that does not is
// passed by and named to `warn`. NOT_FOUND if there is none. Reads all of what it returns.
CheckpointInfo newest_checkpoint(const std::string& folder,
                                 const std::function<void(const std::string&)>& warn);

// Removes all but the newest `keep` (at least 1) whole checkpoints, and what dead saves left
// behind. Damaged ones do not count, and the newest one that verifies is never removed. One rank
// only.
void prune_checkpoints(const std::string& folder, int64_t keep);

}  // namespace yoke
