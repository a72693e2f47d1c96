// A checkpoint is almost a folder that transformers can open: its weights are in safetensors files,
// under Hugging Face's names. An export leaves out the optimizer, rounds to the requested dtype and
// records that dtype in config.json. lay_out() determines the files, as in a save, and
// CheckpointReader reads the weights, so every byte is verified.

#include "core/checkpoint/export.hpp"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/base/files.hpp"
#include "core/base/strict_json.hpp"
#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/layout.hpp"
#include "core/checkpoint/temp_folder.hpp"
#include "yoke/error.hpp"
#include "yoke/tensor.hpp"

namespace yoke {
namespace {

namespace fs = std::filesystem;

// Returns config.json with the dtype of the export. Every version of transformers understands
// `torch_dtype`. Newer ones prefer `dtype`, so a stale one is removed.
std::string config_for(const CheckpointReader& reader, int32_t dtype) {
  const std::string text = reader.hf_config_json();
  const std::string& path = reader.info().path;
  if (text.empty()) {
    throw Error(YOKE_FAILED_PRECONDITION,
                path +
                    " has no config.json, because Hugging Face has no such model family; any "
                    "safetensors library can read its model.safetensors");
  }
  nlohmann::json config = parse_json_object(text, path + "/config.json");
  config.erase("dtype");
  config["torch_dtype"] = dtype == YOKE_BF16 ? "bfloat16" : "float32";
  return config.dump(2) + "\n";
}

// Copies chunk by chunk, so that a tensor is never completely in memory.
void copy_tensor(const CheckpointReader& reader, const StoredTensor& tensor, File& out) {
  const int64_t numel = tensor.numel(), per_chunk = kChunkBytes / tensor.item_bytes();
  std::vector<char> buffer(static_cast<size_t>(std::min(numel, per_chunk) * tensor.item_bytes()));
  YokePiece piece{};
  piece.header = YOKE_HEADER(YokePiece, YOKE_ID_PIECE);
  piece.name = view(tensor.name);
  piece.kind = view(tensor.kind);
  piece.shape = tensor.shape.data();
  piece.ndim = static_cast<int32_t>(tensor.shape.size());
  piece.dtype = tensor.dtype;
  for (piece.begin = 0; piece.begin < numel; piece.begin += piece.count) {
    piece.count = piece.run = std::min(per_chunk, numel - piece.begin);
    const FlatView flat(buffer.data(), piece.count, tensor.dtype);
    piece.view = flat.get();
    reader.visit(piece);
    out.write_at(buffer.data(),
                 static_cast<size_t>(piece.count * tensor.item_bytes()),
                 tensor.offset + static_cast<uint64_t>(piece.begin * tensor.item_bytes()));
  }
}

// Reserves the whole file first, so that a full disk is reported before anything is copied.
void write_file(const CheckpointReader& reader,
                const std::vector<StoredTensor>& tensors,
                const LaidOutFile& file,
                const std::string& folder) {
  File out = File::create(folder + "/" + file.file.name);
  out.reserve(file.file.bytes);
  out.write_at(file.head.data(), file.head.size(), 0);
  for (const StoredTensor& tensor : tensors) {
    if (tensor.file == file.file.name) copy_tensor(reader, tensor, out);
  }
  out.sync();
  out.close();
}

}  // namespace

Exported export_hf(const ExportRequest& request) {
  const CheckpointReader reader(request.checkpoint);
  std::vector<StoredTensor> tensors;
  for (const auto& [name, shape] : reader.param_shapes()) {
    tensors.push_back({name, "param", request.dtype, shape, "", 0, {}});
  }
  std::map<std::string, std::string> texts = reader.companions();
  texts["config.json"] = config_for(reader, request.dtype);
  const std::vector<LaidOutFile> files = lay_out(&tensors, texts, request.max_file_bytes);

  const fs::path folder = fs::absolute(request.folder).lexically_normal() / "";
  const std::string path = folder.parent_path().string();
  const std::string parent = folder.parent_path().parent_path().string();
  if (fs::exists(path)) {
    throw Error(YOKE_FAILED_PRECONDITION,
                request.folder + " exists already; name a new folder or remove that one");
  }
  // The folder is filled under a temporary name and renamed at the end, like a checkpoint.
  make_folders(parent);
  TempFolder temp(parent, folder.parent_path().filename().string());
  Exported out{reader.info().step, tensors.size(), 0, 0, make_path_durable(parent)};
  for (const LaidOutFile& file : files) {
    write_file(reader, tensors, file, temp.path());
    out.files += file.file.name.ends_with(".safetensors") ? 1 : 0;
    out.bytes += file.file.bytes;
  }
  sync_folder(temp.path());
  temp.commit(path);
  return out;
}

}  // namespace yoke
