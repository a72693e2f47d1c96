// A checkpoint is almost a folder that transformers can open: its weights are in safetensors files,
// under Hugging Face's names. An export leaves out the optimizer, rounds to the requested dtype and
// records that dtype in config.json. lay_out() determines the files, as in a save, and
// CheckpointReader reads the weights, so every byte is verified.

#include "core/checkpoint/export.hpp"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "core/base/files.hpp"
#include "core/base/strict_json.hpp"
#include "core/checkpoint/adapter.hpp"
#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/convert.hpp"
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

// Reads elements [begin, begin + count) of a weight of the checkpoint in any dtype.
void read_values(const CheckpointReader& reader,
                 const StoredTensor& tensor,
                 int64_t begin,
                 int64_t count,
                 void* values) {
  YokePiece piece{};
  piece.header = YOKE_HEADER(YokePiece, YOKE_ID_PIECE);
  piece.name = view(tensor.name);
  piece.kind = view(tensor.kind);
  piece.shape = tensor.shape.data();
  piece.ndim = static_cast<int32_t>(tensor.shape.size());
  piece.dtype = tensor.dtype;
  piece.begin = begin;
  piece.count = piece.run = count;
  const FlatView flat(values, piece.count, tensor.dtype);
  piece.view = flat.get();
  reader.visit(piece);
}

// The adapters of a checkpoint, whose products are added to the weights. Keeps the matrices of one
// adapter in memory.
class Merger {
 public:
  explicit Merger(const CheckpointReader& reader)
      : reader_(reader), shapes_(reader.param_shapes()) {
    const auto texts = reader.companions();
    const auto text = texts.find(kAdapterConfig);
    if (text != texts.end()) config_ = parse_adapter_config(text->second, kAdapterConfig);
  }

  bool changes(const std::string& weight) const { return shapes_.contains(adapter_a(weight)); }

  // Adds the product to elements [begin, begin + count) of a weight [out, in] or [in, out].
  void add(const StoredTensor& weight, int64_t begin, int64_t count, float* values) {
    if (weight.name != name_) open(weight.name);
    const int64_t columns = weight.shape[1];
    for (int64_t done = 0; done < count;) {
      const int64_t row = (begin + done) / columns, column = (begin + done) % columns;
      const int64_t size = std::min(columns - column, count - done);
      add_to_row(row, column, size, values + done);
      done += size;
    }
  }

 private:
  // Sums up in double, so that the result is rounded once. Element [row, column] of the product is
  // the sum over r of left[row, r] * right[r, column].
  void add_to_row(int64_t row, int64_t column, int64_t size, float* values) {
    const int64_t rank = config_.rank;
    const auto columns = static_cast<int64_t>(right_.size()) / rank;
    sums_.assign(values, values + size);
    for (int64_t r = 0; r < rank; ++r) {
      const double factor = config_.scale() * left_[static_cast<size_t>(row * rank + r)];
      const float* right = right_.data() + r * columns + column;
      for (int64_t i = 0; i < size; ++i) sums_[static_cast<size_t>(i)] += factor * right[i];
    }
    for (int64_t i = 0; i < size; ++i)
      values[i] = static_cast<float>(sums_[static_cast<size_t>(i)]);
  }

  // The product is B A, or its transpose.
  void open(const std::string& weight) {
    name_ = weight;
    const std::vector<float> a = read(adapter_a(weight)), b = read(adapter_b(weight));
    const bool input_first = config_.input_first(weight);
    left_ = input_first ? transposed(a, config_.rank) : b;
    right_ = input_first ? transposed(b, static_cast<int64_t>(b.size()) / config_.rank) : a;
  }

  std::vector<float> read(const std::string& name) const {
    const StoredTensor tensor{name, "param", YOKE_F32, shapes_.at(name), "", 0, {}};
    std::vector<float> matrix(static_cast<size_t>(tensor.numel()));
    read_values(reader_, tensor, 0, tensor.numel(), matrix.data());
    return matrix;
  }

  static std::vector<float> transposed(const std::vector<float>& matrix, int64_t rows) {
    const auto height = static_cast<size_t>(rows), width = matrix.size() / height;
    std::vector<float> out(matrix.size());
    for (size_t i = 0; i < matrix.size(); ++i) out[i % width * height + i / width] = matrix[i];
    return out;
  }

  const CheckpointReader& reader_;
  const Shapes shapes_;
  AdapterConfig config_;
  std::string name_;                 // name of the weight to which left_ and right_ belong
  std::vector<float> left_, right_;  // [rows, rank] and [rank, columns]
  std::vector<double> sums_;
};

// Copies chunk by chunk, so that a tensor is never completely in memory.
void copy_tensor(const CheckpointReader& reader,
                 const StoredTensor& tensor,
                 Merger& merger,
                 File& out) {
  const int64_t numel = tensor.numel(), per_chunk = kChunkBytes / tensor.item_bytes();
  const bool merge = merger.changes(tensor.name);
  StoredTensor read = tensor;
  if (merge) read.dtype = YOKE_F32;
  std::vector<char> buffer(static_cast<size_t>(std::min(numel, per_chunk) * read.item_bytes()));
  std::vector<char> rounded(merge ? buffer.size() : 0);
  for (int64_t begin = 0; begin < numel; begin += per_chunk) {
    const int64_t count = std::min(per_chunk, numel - begin);
    read_values(reader, read, begin, count, buffer.data());
    const char* values = buffer.data();
    if (merge) {
      merger.add(tensor, begin, count, reinterpret_cast<float*>(buffer.data()));
      convert(buffer.data(), YOKE_F32, rounded.data(), tensor.dtype, count);
      values = rounded.data();
    }
    out.write_at(values,
                 static_cast<size_t>(count * tensor.item_bytes()),
                 tensor.offset + static_cast<uint64_t>(begin * tensor.item_bytes()));
  }
}

// The files of an export, and which tensor of the checkpoint each of their tensors comes from.
struct Contents {
  std::vector<StoredTensor> tensors;  // under their names in the checkpoint
  std::vector<LaidOutFile> files;
};

Contents whole_model(const CheckpointReader& reader, const ExportRequest& request) {
  Contents out;
  for (const auto& [name, shape] : reader.param_shapes()) {
    if (!is_adapter(name)) out.tensors.push_back({name, "param", request.dtype, shape, "", 0, {}});
  }
  std::map<std::string, std::string> texts = reader.companions();
  texts.erase(kAdapterConfig);
  texts["config.json"] = config_for(reader, request.dtype);
  out.files = lay_out(&out.tensors, texts, request.max_file_bytes);
  return out;
}

// PEFT reads a single file, under a name of its own.
Contents only_adapters(const CheckpointReader& reader, const ExportRequest& request) {
  const std::map<std::string, std::string> texts = reader.companions();
  const auto config = texts.find(kAdapterConfig);
  if (config == texts.end()) {
    throw Error(YOKE_FAILED_PRECONDITION,
                reader.info().path +
                    " has no adapters, because its run had lora.rank = 0; export it without "
                    "--adapter");
  }
  Contents out;
  std::map<std::string, std::string> names;  // name of each tensor, by that in PEFT's file
  for (const auto& [name, shape] : reader.param_shapes()) {
    if (!is_adapter(name)) continue;
    names[peft_name(name)] = name;
    out.tensors.push_back({peft_name(name), "param", request.dtype, shape, "", 0, {}});
  }
  out.files = lay_out(&out.tensors, {{kAdapterConfig, config->second}}, UINT64_MAX);
  for (StoredTensor& tensor : out.tensors) {
    tensor.name = names.at(tensor.name);
    tensor.file = kAdapterWeights;
  }
  for (LaidOutFile& file : out.files) {
    if (file.file.name == "model.safetensors") file.file.name = kAdapterWeights;
  }
  return out;
}

// Reserves the whole file first, so that a full disk is reported before anything is copied.
void write_file(const CheckpointReader& reader,
                const std::vector<StoredTensor>& tensors,
                const LaidOutFile& file,
                const std::string& folder) {
  Merger merger(reader);
  File out = File::create(folder + "/" + file.file.name);
  out.reserve(file.file.bytes);
  out.write_at(file.head.data(), file.head.size(), 0);
  for (const StoredTensor& tensor : tensors) {
    if (tensor.file == file.file.name) copy_tensor(reader, tensor, merger, out);
  }
  out.sync();
  out.close();
}

}  // namespace

Exported export_hf(const ExportRequest& request) {
  const CheckpointReader reader(request.checkpoint);
  const auto [tensors, files] =
      request.adapters_only ? only_adapters(reader, request) : whole_model(reader, request);

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
