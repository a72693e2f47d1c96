#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/base/crc32c.hpp"
#include "core/base/files.hpp"
#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/layout.hpp"
#include "core/checkpoint/manifest.hpp"
#include "core/checkpoint/pieces.hpp"
#include "core/checkpoint/retention.hpp"
#include "core/checkpoint/temp_folder.hpp"
#include "core/checkpoint/tiling.hpp"
#include "yoke/error.hpp"
#include "yoke/tensor.hpp"

namespace yoke {
namespace {

using Json = nlohmann::json;
using TensorKey = std::pair<std::string, std::string>;  // name, kind

// ---- What ranks tell each other: a JSON object, or {"error": {code, text, rank}}
// -------------------

std::string dump(const Json& json) {
  return json.dump(
      -1, ' ', false, Json::error_handler_t::replace);  // never throws for a name's sake
}

Json failure(int32_t code, const std::string& text, int32_t rank) {
  return {{"error", {{"code", code}, {"text", text}, {"rank", rank}}}};
}

// A failure becomes a message, because the other ranks wait for one.
template <class F>
Json attempt(int32_t rank, F&& f) {
  try {
    return f();
  } catch (const Error& e) {
    return failure(e.code(), e.what(), e.rank() < 0 ? rank : e.rank());
  } catch (const std::bad_alloc&) {
    return failure(YOKE_RESOURCE_EXHAUSTED, "out of memory", rank);
  } catch (const std::exception& e) {
    return failure(YOKE_INTERNAL, e.what(), rank);
  }
}

Json to_json(const StridedSpan& span) {
  return {span.begin, span.count, span.run, span.stride};
}

StridedSpan span_from(const Json& json) {
  return {json.at(0), json.at(1), json.at(2), json.at(3)};
}

void throw_if_failed(const Json& json) {
  if (!json.contains("error")) return;
  const Json& e = json.at("error");
  throw Error(e.at("code"), e.at("text").get<std::string>(), e.at("rank"));
}

// ---- One save, on one rank
// -------------------------------------------------------------------------

class Save {
 public:
  Save(const SaveRequest& request, const SaveGroup& group) : request_(request), group_(group) {}

  std::string run(const PieceWalk& walk) {
    plan(attempt(group_.rank, [&] { return describe(walk); }));
    return commit(attempt(group_.rank, [&] { return write(walk); }));
  }

 private:
  struct Place {
    StoredTensor* tensor;
    File* file;
  };

  // First pass: what this rank will write.
  Json describe(const PieceWalk& walk) {
    std::map<TensorKey, size_t> index;
    walk(YOKE_CHECKPOINT_DESCRIBE, [&](const YokePiece& piece) {
      if (piece.replica != 0) return;
      StoredTensor tensor = tensor_of(piece);
      const auto [at, added] = index.try_emplace({tensor.name, tensor.kind}, tensors_.size());
      if (added) tensors_.push_back(tensor);
      require_same(tensors_[at->second], tensor);
      if (piece.count > 0) tensors_[at->second].pieces.push_back({span_of(piece), {}, -1});
    });
    Json list = Json::array();
    for (const StoredTensor& t : tensors_) {
      Json pieces = Json::array();
      for (const StoredPiece& piece : t.pieces) pieces.push_back(to_json(piece.at));
      list.push_back({t.name, t.kind, t.dtype, t.shape, pieces});
    }
    return {{"tensors", list}};
  }

  // Rank 0 lays out the files, all learn where.
  void plan(const Json& mine) {
    const std::vector<std::string> reports = group_.gather(dump(mine));
    Json plan;
    if (group_.rank == 0) {
      plan = attempt(0, [&] { return explain_full_disk([&] { return lay_out_files(reports); }); });
    }
    plan = Json::parse(group_.from_rank0(dump(plan)));
    throw_if_failed(plan);
    // Not yet an error of the group: the second gather must be reached by all.
    opened_ = attempt(group_.rank, [&] { return open_files(plan); });
  }

  Json lay_out_files(const std::vector<std::string>& reports) {
    std::map<TensorKey, StoredTensor> all;
    for (size_t rank = 0; rank < reports.size(); ++rank) {
      const Json report = Json::parse(reports[rank]);
      throw_if_failed(report);
      merge(report, static_cast<int32_t>(rank), &all);
    }
    for (auto& [key, tensor] : all) manifest_.tensors.push_back(std::move(tensor));
    check_tiling(&manifest_.tensors, YOKE_INTERNAL, "the backend's pieces with replica 0: ");
    const bool has_param = std::any_of(manifest_.tensors.begin(),
                                       manifest_.tensors.end(),
                                       [](const StoredTensor& t) { return t.kind == "param"; });
    if (!has_param) throw Error(YOKE_INTERNAL, "the backend has no piece of the kind 'param'");
    const std::vector<LaidOutFile> files =
        lay_out(&manifest_.tensors, request_.hf_config_json, request_.max_file_bytes);
    make_files(files);
    return place_all();
  }

  static void merge(const Json& report, int32_t rank, std::map<TensorKey, StoredTensor>* all) {
    for (const Json& item : report.at("tensors")) {
      StoredTensor tensor;
      tensor.name = item.at(0);
      tensor.kind = item.at(1);
      tensor.dtype = item.at(2);
      tensor.shape = item.at(3).get<std::vector<int64_t>>();
      StoredTensor& merged = all->try_emplace({tensor.name, tensor.kind}, tensor).first->second;
      require_same(merged, tensor);
      for (const Json& piece : item.at(4)) {
        merged.pieces.push_back({span_from(piece), {}, rank});
      }
    }
  }

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

  Json place_all() const {
    Json places = Json::array();
    for (const StoredTensor& t : manifest_.tensors)
      places.push_back({t.name, t.kind, t.file, t.offset});
    return {{"folder", temp_->path()}, {"tensors", places}};
  }

  Json open_files(const Json& plan) {
    for (StoredTensor& tensor : tensors_) {
      tensor.pieces.clear();  // from here on: what was really written
      places_[{tensor.name, tensor.kind}].tensor = &tensor;
    }
    for (const Json& item : plan.at("tensors")) {
      const auto at = places_.find({item.at(0), item.at(1)});
      if (at == places_.end()) continue;
      const std::string path =
          plan.at("folder").get<std::string>() + "/" + item.at(2).get<std::string>();
      auto& file = files_[path];
      if (file == nullptr) file = std::make_unique<File>(File::open_for_writing(path));
      at->second.tensor->offset = item.at(3);
      at->second.file = file.get();
    }
    return Json::object();
  }

  // Second pass: straight from the views into the files.
  Json write(const PieceWalk& walk) {
    std::exception_ptr failed;
    walk(YOKE_CHECKPOINT_SAVE, [&](const YokePiece& piece) {
      // SAVE is collective: a rank whose disk is full must still walk to the end with the others.
      if (failed != nullptr || opened_.contains("error")) return;
      try {
        write_piece(piece);
      } catch (...) {
        failed = std::current_exception();
      }
    });
    if (failed != nullptr) std::rethrow_exception(failed);
    throw_if_failed(opened_);
    for (auto& [path, file] : files_) {
      file->sync_data();
      file->close();
    }
    Json list = Json::array();
    for (const StoredTensor& t : tensors_) {
      for (const StoredPiece& p : t.pieces)
        list.push_back({t.name, t.kind, to_json(p.at), to_hex(p.crc)});
    }
    return {{"pieces", list}};
  }

  void write_piece(const YokePiece& piece) {
    if (piece.replica != 0 || piece.count == 0) return;
    const StoredTensor tensor = tensor_of(piece);
    const auto at = places_.find({tensor.name, tensor.kind});
    if (at == places_.end()) {
      throw Error(YOKE_INTERNAL, tensor.describe() + " was saved but not described by the backend");
    }
    require_same(*at->second.tensor, tensor);
    const char* bytes = data_of(piece, piece.dtype);
    StoredPiece written{span_of(piece), {}, group_.rank};
    const int64_t item = tensor.item_bytes(), per_chunk = kChunkBytes / item;
    for (int64_t from = 0; from < piece.count; from += per_chunk) {
      const int64_t to = std::min(from + per_chunk, piece.count);
      written.crc.push_back(
          crc32c(0, bytes + from * item, static_cast<size_t>((to - from) * item)));
      written.at.for_each_span(from, to, [&](int64_t element, int64_t i, int64_t n) {
        at->second.file->write_at(
            bytes + i * item,
            static_cast<size_t>(n * item),
            at->second.tensor->offset + static_cast<uint64_t>(element * item));
      });
    }
    at->second.tensor->pieces.push_back(std::move(written));
  }

  std::string commit(const Json& mine) {
    const std::vector<std::string> reports = group_.gather(dump(mine));
    Json outcome;
    if (group_.rank == 0) {
      outcome =
          attempt(0, [&] { return explain_full_disk([&] { return commit_files(reports); }); });
      temp_.reset();
      lock_.reset();
    }
    outcome = Json::parse(group_.from_rank0(dump(outcome)));
    throw_if_failed(outcome);
    return outcome.at("path");
  }

  Json commit_files(const std::vector<std::string>& reports) {
    std::map<TensorKey, StoredTensor*> index;
    for (StoredTensor& tensor : manifest_.tensors) {
      tensor.pieces.clear();
      index[{tensor.name, tensor.kind}] = &tensor;
    }
    for (size_t rank = 0; rank < reports.size(); ++rank) {
      const Json report = Json::parse(reports[rank]);
      throw_if_failed(report);
      for (const Json& piece : report.at("pieces")) {
        index.at({piece.at(0), piece.at(1)})
            ->pieces.push_back(
                {span_from(piece.at(2)), from_hex(piece.at(3)), static_cast<int32_t>(rank)});
      }
    }
    check_tiling(
        &manifest_.tensors, YOKE_INTERNAL, "the backend saved other pieces than it described: ");
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
    return {{"path", path}};
  }

  // Adds the numbers that a user needs to an error that only says that the disk is full.
  template <class F>
  Json explain_full_disk(F&& f) {
    try {
      return f();
    } catch (const Error& e) {
      if (e.code() != YOKE_RESOURCE_EXHAUSTED || needed_bytes_ == 0) throw;
      temp_.reset();  // so that "free" is what the user will find
      throw Error(e.code(),
                  std::string(e.what()) + ": it needs " + std::to_string(needed_bytes_) +
                      " bytes, " + std::to_string(free_bytes(request_.folder)) + " are free in " +
                      request_.folder + "; make room or lower checkpoint.keep",
                  e.rank());
    }
  }

  const SaveRequest& request_;
  const SaveGroup& group_;
  std::vector<StoredTensor> tensors_;  // of this rank
  std::map<TensorKey, Place> places_;
  Json opened_;
  // Rank 0 only. Destroyed last to first: files close, the folder goes, then the lock.
  Manifest manifest_;
  uint64_t needed_bytes_ = 0;
  std::optional<FolderLock> lock_;
  std::optional<TempFolder> temp_;
  std::map<std::string, std::unique_ptr<File>> files_;  // every rank
};

}  // namespace

std::string save_checkpoint(const SaveRequest& request,
                            const SaveGroup& group,
                            const PieceWalk& walk) {
  return Save(request, group).run(walk);
}

}  // namespace yoke
