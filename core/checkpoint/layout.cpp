// The layout is a function of names, shapes and dtypes alone. The files of weights and of the
// optimizer therefore have the same bytes, whichever backend and however many ranks wrote them, and
// an export can use the same function. Every offset is known before the first tensor is written, so
// that all ranks can write into the same files at once.

#include "core/checkpoint/layout.hpp"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/crc32c.hpp"
#include "yoke/error.hpp"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using TensorGroup = std::vector<StoredTensor*>;

// Sorts larger items first. The data starts at a multiple of 64 bytes, so every tensor is then
// aligned to its item size without padding, which the format does not allow.
bool comes_before(const StoredTensor* a, const StoredTensor* b) {
  if (a->item_bytes() != b->item_bytes()) return a->item_bytes() > b->item_bytes();
  return a->stored_name() < b->stored_name();
}

// Splits a group into parts, one per file, of at most max_file_bytes. A tensor above the limit gets
// its own part.
std::vector<TensorGroup> split(const TensorGroup& group, uint64_t max_file_bytes) {
  std::vector<TensorGroup> parts;
  uint64_t filled = 0;
  for (StoredTensor* tensor : group) {
    if (parts.empty() || filled + tensor->bytes() > max_file_bytes) {
      parts.emplace_back();
      filled = 0;
    }
    parts.back().push_back(tensor);
    filled += tensor->bytes();
  }
  return parts;
}

std::string file_name(const std::string& stem, size_t index, size_t count) {
  if (count == 1) return stem + ".safetensors";
  return string_printf("%s-%05zu-of-%05zu.safetensors", stem.c_str(), index + 1, count);
}

LaidOutFile lay_out_file(const TensorGroup& group, const std::string& name) {
  std::vector<SafetensorsTensor> entries;
  for (const StoredTensor* tensor : group) {
    entries.push_back({tensor->stored_name(), tensor->dtype, tensor->shape, 0, 0});
  }
  LaidOutFile out;
  // transformers opens only files that name the framework of their tensors.
  out.head = make_safetensors_header(&entries, {{"format", "pt"}});
  for (size_t i = 0; i < group.size(); ++i) {
    group[i]->file = name;
    group[i]->offset = entries[i].begin;
  }
  out.file = {
      name, entries.back().end, out.head.size(), crc32c(0, out.head.data(), out.head.size())};
  return out;
}

LaidOutFile text_file(const std::string& name, const std::string& text) {
  return {{name, text.size(), text.size(), crc32c(0, text.data(), text.size())}, text};
}

LaidOutFile index_file(const TensorGroup& weights) {
  std::map<std::string, std::string> weight_map;
  uint64_t total = 0;
  for (const StoredTensor* tensor : weights) {
    weight_map[tensor->stored_name()] = tensor->file;
    total += tensor->bytes();
  }
  const nlohmann::json index = {{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}};
  return text_file("model.safetensors.index.json", index.dump(2) + "\n");
}

}  // namespace

int64_t StoredTensor::numel() const {
  return yoke::numel(shape.data(), static_cast<int32_t>(shape.size()));
}
int64_t StoredTensor::item_bytes() const {
  return item_size(dtype);
}
std::string StoredTensor::stored_name() const {
  return kind == "param" ? name : name + "." + kind;
}
std::string StoredTensor::describe() const {
  return "tensor '" + name + "' (" + kind + ")";
}

std::vector<LaidOutFile> lay_out(std::vector<StoredTensor>* tensors,
                                 const std::map<std::string, std::string>& texts,
                                 uint64_t max_file_bytes) {
  std::map<std::string, TensorGroup> groups;
  for (StoredTensor& tensor : *tensors) {
    groups[tensor.kind == "param" ? "model" : "optimizer"].push_back(&tensor);
  }
  std::vector<LaidOutFile> files;
  for (auto& [stem, group] : groups) {
    std::sort(group.begin(), group.end(), comes_before);
    const std::vector<TensorGroup> parts = split(group, max_file_bytes);
    for (size_t i = 0; i < parts.size(); ++i) {
      files.push_back(lay_out_file(parts[i], file_name(stem, i, parts.size())));
    }
    if (stem == "model" && parts.size() > 1) files.push_back(index_file(group));
  }
  for (const auto& [name, text] : texts) files.push_back(text_file(name, text));
  return files;
}

}  // namespace yoke
