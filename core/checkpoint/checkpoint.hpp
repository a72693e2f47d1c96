// Saves and loads the state of a run. All backends, layouts and world sizes share one format, so a
// run can be resumed with another backend or on another number of ranks. A piece (YokePiece) is the
// part of one tensor that one rank holds. Does not need LibTorch.
//
//   step-00001000/
//     model.safetensors        whole tensors in fp32 (fp64 in fp64 runs) under Hugging Face's
//                              names; above the size limit model-0000i-of-0000n.safetensors and
//                              an index
//     config.json              Hugging Face's description of the model; absent if the model family
//                              has none
//     tokenizer.json, ...      files of the folder that the run started from, such as those of its
//                              tokenizer (companion_files())
//     optimizer.safetensors    whole tensors "<parameter>.<kind>" and the scalar "optimizer.step";
//                              split like the weights
//     manifest.json            step, data cursor, files, tensors, and a CRC32C of every 4 MiB
//
// Every byte is covered by a checksum. A tied parameter is stored once, under the name that the
// model gives it. A save writes into the folder `.step-00001000.tmp-*`, syncs it and renames it.
// The rename is the commit: a checkpoint either exists completely or not at all.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/checkpoint/shapes.hpp"
#include "yoke/parallel_backend.h"

namespace yoke {

// The scale of the loss in an fp16 run; see core/run/loss_scaler.hpp.
struct LossScaleState {
  double scale = 1;        // factor of the loss in the next step
  int64_t good_steps = 0;  // steps since the last overflow
  int64_t hysteresis = 1;  // the scale falls with this overflow from now on; 1 = with the next one
  int64_t skipped = 0;     // number of skipped steps since the start of the run

  bool operator==(const LossScaleState&) const = default;
};

// Returns the names of the files that belong to a model of Hugging Face besides its weights and
// config.json: those of its tokenizer, and generation_config.json.
const std::vector<std::string>& companion_files();
// Returns the contents of those companion_files() that a folder has, by name. If the folder is a
// checkpoint, they are verified. Throws Error if a file cannot be read or has more than 64 MiB.
std::map<std::string, std::string> read_companions(const std::string& folder);

// What the state of a run consists of, besides the scalar "optimizer.step".
struct StateContents {
  Shapes params;  // every parameter, with its shape in files
  // For each kind of moments, such as "exp_avg", the names of the parameters that have it.
  std::map<std::string, std::set<std::string>> moments;
  // Other kinds that may exist, as declared; std::nullopt = any, because the backend cannot declare
  // them.
  std::optional<std::set<std::string>> own_kinds;
};

// How many tensors of each kind a checkpoint has; recorded in its manifest.
struct ContentCounts {
  int64_t params = 0;
  std::map<std::string, int64_t> moments;  // number of tensors of each kind of moments

  bool operator==(const ContentCounts&) const = default;
};

struct CheckpointInfo {
  std::string path;           // path of the checkpoint's own folder; set by save and by the reader
  int64_t step = 0;           // last step that the state includes
  int64_t next_sample = 0;    // global index of the first sample not yet trained on
  std::string config_digest;  // resume_digest() of the run
  std::string fixed_digest;   // fixed_digest() of the run; "" = an older release has saved it
  // Size and sample of the training data, see data_contents(); "" = an older release has saved it.
  std::string data;
  bool finished = false;                     // true after the last step of the run
  std::optional<LossScaleState> loss_scale;  // only of fp16 runs
  int64_t skipped = 0;                       // number of skipped steps of the run
  std::optional<double> eval_loss;  // mean loss of the evaluation after `step`, if there was one
};

// SaveGroup is the communication that a save needs. The host implements it with its communicators,
// tests with threads. Both functions are collective and throw Error (UNAVAILABLE) if a peer is
// lost.
struct SaveGroup {
  int32_t rank = 0;
  int32_t world_size = 1;
  // Returns the texts of all ranks in rank order on rank 0, and an empty list on the others.
  std::function<std::vector<std::string>(const std::string& mine)> gather;
  // Returns the text of rank 0 on every rank.
  std::function<std::string(const std::string& mine)> from_rank0;
};

using PieceVisitor = std::function<void(const YokePiece& piece)>;
// Calls `visit` with each piece of this rank, as ParallelBackend::checkpoint does. op is
// YOKE_CHECKPOINT_DESCRIBE or YOKE_CHECKPOINT_SAVE. Throws the Error that the backend reports.
using PieceWalk = std::function<void(int32_t op, const PieceVisitor& visit)>;

struct SaveRequest {
  std::string folder;  // folder of all checkpoints of the run; created if missing
  CheckpointInfo info;
  std::optional<StateContents> contents;  // what the state must contain; std::nullopt = anything
  // Contents of files beside the weights, by name: config.json and those of companion_files().
  std::map<std::string, std::string> texts;
  // Largest size of a file of weights or optimizer state. The tensors of a larger model are divided
  // among several files. A single tensor is never split, so its file may be larger.
  uint64_t max_file_bytes = 5'000'000'000;
};

// Saves and commits one checkpoint. Returns its path, the same on every rank. Collective. All ranks
// must see the same file system. May be called by one thread of a rank at a time.
//
// `walk` is called twice. The walk with DESCRIBE determines where every tensor is stored. In the
// walk with SAVE each rank writes its pieces with replica = 0 into the shared files, directly from
// their views in host memory: nothing is buffered and no tensor is gathered. If the step was saved
// before, the old checkpoint is replaced atomically; on a file system that cannot do that (NFS), it
// is replaced if it is damaged.
//
// If anything fails on any rank, all ranks throw the Error of the first failing rank, the attempt
// is removed and older checkpoints stay as they were:
//   RESOURCE_EXHAUSTED   the disk is full; the message states the needed and the free bytes
//   INTERNAL             the backend's pieces do not tile a tensor, are invalid, or are not all of
//                        `contents`; or the step of the optimizer is not that of the request
//   FAILED_PRECONDITION  the folder cannot be written, another process is saving into it, or an
//                        undamaged checkpoint of the step cannot be replaced
std::string save_checkpoint(const SaveRequest& request,
                            const SaveGroup& group,
                            const PieceWalk& walk);

// Checks that the state which a backend reports is complete, as a save would. `walk` is called
// once, with DESCRIBE. Throws the same Error(INTERNAL) on all ranks. Collective.
void check_state(const SaveGroup& group, const StateContents& contents, const PieceWalk& walk);

// A CheckpointReader is a committed checkpoint that is open for reading. Any thread may call any
// method; none is collective. The methods throw Error.
class CheckpointReader {
 public:
  // Reads the manifest and compares files, sizes and safetensors headers with it. Throws NOT_FOUND
  // if there is no checkpoint at `path`, DATA_LOSS if it is damaged.
  explicit CheckpointReader(const std::string& path);
  ~CheckpointReader();
  const CheckpointInfo& info() const;
  // Returns the size of all files except for the manifest.
  uint64_t bytes() const;
  // Returns the names and shapes of the weights.
  Shapes param_shapes() const;
  // Returns the contents of config.json after checking its checksum; "" = there is none.
  std::string hf_config_json() const;
  // Returns the contents of those companion_files() that it has, by name, after checking their
  // checksums.
  std::map<std::string, std::string> companions() const;
  // Throws FAILED_PRECONDITION with the first 20 differences if the names or shapes of the weights
  // differ from those of `model`.
  void check_model(const Shapes& model) const;
  void check_model(const YokeModelSummary& model) const { check_model(shapes_of(model)); }
  // Reads the elements that `piece` describes into piece.view, which must be contiguous host
  // memory, and verifies their checksums. Without a view it only verifies them. The elements may be
  // any part of any tensor, whatever layout it was saved with. Widening bf16 -> fp32 -> fp64 is
  // exact, narrowing rounds once to nearest even; other dtypes are not converted. Throws NOT_FOUND
  // if there is no such tensor or kind, FAILED_PRECONDITION if shape or dtype do not match,
  // DATA_LOSS if the bytes are damaged.
  void visit(const YokePiece& piece) const;
  // Returns the shape of a tensor; std::nullopt = there is none of this name and kind.
  std::optional<std::vector<int64_t>> shape(const std::string& name, const std::string& kind) const;
  // Reads and verifies every byte. Throws DATA_LOSS, naming the file, tensor and elements of the
  // first damage, what is missing, or the folder if its name belongs to a different step.
  void verify() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Returns the newest undamaged checkpoint in a folder of checkpoints, after verifying every byte of
// it. Calls `warn` with the reason for each one that it skips. Throws NOT_FOUND if there is no
// checkpoint, DATA_LOSS if all are damaged.
CheckpointInfo newest_checkpoint(const std::string& folder,
                                 const std::function<void(const std::string&)>& warn);

// Returns the checkpoint with the lowest eval_loss in a folder of checkpoints, the oldest one of
// equals, after verifying every byte of it. Those that are damaged or were not evaluated do not
// count; nothing if there is no other. Throws Error if the folder cannot be listed.
std::optional<CheckpointInfo> best_checkpoint(const std::string& folder);

// What prune_checkpoints() keeps.
struct Kept {
  int64_t newest = 1;  // number of newest checkpoints that can be opened; at least 1
  bool best = false;   // whether best_checkpoint() is kept, too
};
// Removes all other checkpoints, and the temporary folders of interrupted saves. Damaged
// checkpoints do not count, and the newest one that passes verify() is never removed. Does nothing
// while a save is running. Call it on one rank only.
void prune_checkpoints(const std::string& folder, const Kept& kept);

}  // namespace yoke
