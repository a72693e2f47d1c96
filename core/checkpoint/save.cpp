// Saves one checkpoint, all ranks together.
//
// Every rank walks twice over its pieces. The first walk only describes them. From all descriptions
// rank 0 determines the place (file and offset) of every tensor, creates the files and sends the
// places to the ranks. In the second walk each rank writes its own pieces there, directly from the
// memory of the backend: no tensor is ever gathered, and nothing is buffered. Finally rank 0 checks
// that the written pieces tile every tensor, writes manifest.json and renames the folder.
//
//   describe -> lay_out_files (rank 0) -> open_files -> write -> commit_files (rank 0)
//
// The arrows are the four messages of save_messages.hpp. Two other designs were rejected. Gathering
// each tensor on one rank needs the memory of a whole tensor and lets one rank do all the writing.
// One file per rank needs no first walk, but then the format depends on the layout of the run.
//
// The ranks wait for each other's messages, so all of them must learn of a failure. A rank that
// fails therefore sends the failure in place of its message, and all ranks throw it.

#include <algorithm>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "core/base/crc32c.hpp"
#include "core/base/files.hpp"
#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/contents.hpp"
#include "core/checkpoint/layout.hpp"
#include "core/checkpoint/manifest.hpp"
#include "core/checkpoint/pieces.hpp"
#include "core/checkpoint/retention.hpp"
#include "core/checkpoint/save_messages.hpp"
#include "core/checkpoint/temp_folder.hpp"
#include "core/checkpoint/tiling.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using TensorKey = std::pair<std::string, std::string>;  // name and kind

TensorKey key_of(const StoredTensor& tensor) {
  return {tensor.name, tensor.kind};
}

// Save performs one save on one rank.
class Save {
 public:
  Save(const SaveRequest& request, const SaveGroup& group) : request_(request), group_(group) {}

  std::string run(const PieceWalk& walk) {
    plan(message_of(group_.rank, [&] { return describe(walk); }));
    return commit(message_of(group_.rank, [&] { return write(walk); }));
  }

 private:
  // The tensor and the open file into which this rank writes its pieces.
  struct Place {
    StoredTensor* tensor;
    File* file;
  };

  // The first walk. It collects the pieces that this rank will write: those with replica 0, so that
  // each element is written once.
  RankTensors describe(const PieceWalk& walk) {
    mine_ = describe_state(walk);
    return mine_;
  }

  // Rank 0 lays out the files from all descriptions; every rank then opens the files of its pieces.
  void plan(const std::string& description) {
    const std::vector<std::string> descriptions = group_.gather(description);
    std::string text;
    if (group_.rank == 0) {
      text = message_of(
          0, [&] { return explain_full_disk([&] { return lay_out_files(descriptions); }); });
    }
    const FilePlan files = file_plan_from(group_.from_rank0(text));
    // A file that cannot be opened must not end the save here, because the other ranks will wait
    // for the next message. write() reports the failure in that message.
    try {
      open_files(files);
    } catch (...) {
      open_failure_ = std::current_exception();
    }
  }

  FilePlan lay_out_files(const std::vector<std::string>& descriptions) {
    manifest_.tensors = merge_state(rank_tensors_from(descriptions));
    if (request_.contents) {
      check_contents(manifest_.tensors, *request_.contents);
      manifest_.counts = counts_of(*request_.contents);
    }
    const bool has_param = std::any_of(manifest_.tensors.begin(),
                                       manifest_.tensors.end(),
                                       [](const StoredTensor& t) { return t.kind == "param"; });
    if (!has_param) throw Error(YOKE_INTERNAL, "the backend has no piece of the kind 'param'");
    const std::vector<LaidOutFile> files =
        lay_out(&manifest_.tensors, request_.texts, request_.max_file_bytes);
    make_files(files);
    return all_places();
  }

  // Creates the files at their full size, so that a full disk is detected before any tensor is
  // written. The lock is held until the commit, so that no other process sweeps the temporary
  // folder.
  void make_files(const std::vector<LaidOutFile>& files) {
    make_folders(request_.folder);
    lock_.emplace(request_.folder);
    if (!lock_->held()) {
      throw Error(
          YOKE_FAILED_PRECONDITION,
          "another process is saving into " + request_.folder + "; give this run another run.dir");
    }
    sweep_temporaries(request_.folder);
    needed_bytes_ = 0;
    for (const LaidOutFile& file : files) needed_bytes_ += file.file.bytes;
    if (free_bytes(request_.folder) < needed_bytes_) {
      throw Error(YOKE_RESOURCE_EXHAUSTED, "the disk has no room for the checkpoint");
    }
    temp_.emplace(request_.folder, step_name(request_.info.step));
    for (const LaidOutFile& file : files) {
      File out = File::create(temp_->path() + "/" + file.file.name);
      out.reserve(file.file.bytes);
      out.write_at(file.head.data(), file.head.size(), 0);
      out.close();
      manifest_.files.push_back(file.file);
    }
  }

  FilePlan all_places() const {
    FilePlan plan;
    plan.folder = temp_->path();
    for (const StoredTensor& t : manifest_.tensors)
      plan.tensors.push_back({t.name, t.kind, t.file, t.offset});
    return plan;
  }

  void open_files(const FilePlan& plan) {
    for (StoredTensor& tensor : mine_.tensors) {
      tensor.pieces.clear();  // the second walk fills them with what was really written
      places_[key_of(tensor)].tensor = &tensor;
    }
    for (const TensorPlace& place : plan.tensors) {
      const auto at = places_.find({place.name, place.kind});
      if (at == places_.end()) continue;  // this rank has no piece of the tensor
      const std::string path = plan.folder + "/" + place.file;
      auto& file = files_[path];
      if (file == nullptr) file = std::make_unique<File>(File::open_for_writing(path));
      at->second.tensor->offset = place.offset;
      at->second.file = file.get();
    }
  }

  // The second walk is collective: a rank that fails must still complete it with the others. So it
  // keeps the exception, skips the remaining pieces and throws afterwards.
  RankTensors write(const PieceWalk& walk) {
    std::exception_ptr failure;
    walk(YOKE_CHECKPOINT_SAVE, [&](const YokePiece& piece) {
      if (failure != nullptr || open_failure_ != nullptr) return;
      try {
        write_piece(piece);
      } catch (...) {
        failure = std::current_exception();
      }
    });
    if (failure != nullptr) std::rethrow_exception(failure);
    if (open_failure_ != nullptr) std::rethrow_exception(open_failure_);
    for (auto& [path, file] : files_) {
      file->sync_data();
      file->close();
    }
    return mine_;
  }

  // Writes one piece, chunk by chunk: a chunk gets one checksum and, if the piece is strided, one
  // write per span.
  void write_piece(const YokePiece& piece) {
    if (piece.replica != 0 || piece.count == 0) return;
    const StoredTensor tensor = tensor_of(piece);
    const auto at = places_.find(key_of(tensor));
    if (at == places_.end()) {
      throw Error(YOKE_INTERNAL, tensor.describe() + " was saved but not described by the backend");
    }
    const Place& place = at->second;
    require_same(*place.tensor, tensor);
    const char* bytes = data_of(piece, piece.dtype);
    if (tensor.kind == "step" && request_.contents) check_step(bytes);
    StoredPiece written{span_of(piece), {}, group_.rank};
    const int64_t item = tensor.item_bytes(), per_chunk = kChunkBytes / item;
    for (int64_t from = 0; from < piece.count; from += per_chunk) {
      const int64_t to = std::min(from + per_chunk, piece.count);
      written.crc.push_back(
          crc32c(0, bytes + from * item, static_cast<size_t>((to - from) * item)));
      written.at.for_each_span(from, to, [&](int64_t element, int64_t i, int64_t n) {
        place.file->write_at(bytes + i * item,
                             static_cast<size_t>(n * item),
                             place.tensor->offset + static_cast<uint64_t>(element * item));
      });
    }
    place.tensor->pieces.push_back(std::move(written));
  }

  // The optimizer would continue with another number than the host.
  void check_step(const char* bytes) const {
    int64_t step = 0;
    std::memcpy(&step, bytes, sizeof step);
    if (step == request_.info.step) return;
    throw Error(YOKE_INTERNAL,
                concat("the backend saves step ", step, " of the optimizer after step ") +
                    concat(request_.info.step, " of the run"));
  }

  std::string commit(const std::string& written) {
    const std::vector<std::string> all_written = group_.gather(written);
    std::string text;
    if (group_.rank == 0) {
      text = message_of(
          0, [&] { return explain_full_disk([&] { return commit_files(all_written); }); });
      temp_.reset();
      lock_.reset();
    }
    return committed_from(group_.from_rank0(text)).path;
  }

  // Checks what was written, completes the folder and renames it. The backend may have passed other
  // pieces in the second walk than in the first, so the tiling is checked again.
  Committed commit_files(const std::vector<std::string>& all_written) {
    std::map<TensorKey, StoredTensor*> index;
    for (StoredTensor& tensor : manifest_.tensors) {
      tensor.pieces.clear();
      index[key_of(tensor)] = &tensor;
    }
    for (size_t rank = 0; rank < all_written.size(); ++rank) {
      for (const StoredTensor& tensor : rank_tensors_from(all_written[rank]).tensors) {
        for (const StoredPiece& piece : tensor.pieces)
          index.at(key_of(tensor))
              ->pieces.push_back({piece.at, piece.crc, static_cast<int32_t>(rank)});
      }
    }
    check_tiling(
        &manifest_.tensors, YOKE_INTERNAL, "the backend saved other pieces than it described: ");
    // The ranks have synced their data; this syncs what only rank 0 wrote, the heads of the files.
    for (const StoredFile& file : manifest_.files) {
      File out = File::open_for_writing(temp_->path() + "/" + file.name);
      out.sync();
      out.close();
    }
    manifest_.info = request_.info;
    manifest_.world_size = group_.world_size;
    create_text(temp_->path() + "/manifest.json", to_text(manifest_));
    sync_folder(temp_->path());
    const std::string path = request_.folder + "/" + step_name(request_.info.step);
    temp_->commit(path);
    return {path};
  }

  // Adds the numbers that a user needs to an error that only reports that the disk is full.
  template <class F>
  auto explain_full_disk(F&& f) -> decltype(f()) {
    try {
      return f();
    } catch (const Error& e) {
      if (e.code() != YOKE_RESOURCE_EXHAUSTED || needed_bytes_ == 0) throw;
      temp_.reset();  // so that the free bytes are those that the user will find
      throw Error(e.code(),
                  concat(e.what(),
                         ": it needs ",
                         needed_bytes_,
                         " bytes, ",
                         free_bytes(request_.folder),
                         " are free in ",
                         request_.folder,
                         "; make room or lower checkpoint.keep"),
                  e.rank());
    }
  }

  const SaveRequest& request_;
  const SaveGroup& group_;
  RankTensors mine_;  // this rank's tensors; the pieces are those described, then those written
  std::map<TensorKey, Place> places_;
  std::exception_ptr open_failure_;  // thrown after the second walk
  // Only rank 0 uses the next four. Members are destroyed from the last to the first: the files are
  // closed, the folder is removed, the lock is released.
  Manifest manifest_;
  uint64_t needed_bytes_ = 0;
  std::optional<FolderLock> lock_;
  std::optional<TempFolder> temp_;
  std::map<std::string, std::unique_ptr<File>> files_;  // open files of this rank, by path
};

}  // namespace

std::string save_checkpoint(const SaveRequest& request,
                            const SaveGroup& group,
                            const PieceWalk& walk) {
  return Save(request, group).run(walk);
}

}  // namespace yoke
