// Helpers that create a folder in the format of transformers.
#pragma once

#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/checkpoint/safetensors.hpp"
#include "tests/support/temp_folder.hpp"
#include "yoke/tensor.hpp"

namespace yoke::testing {

struct HfTensor {
  std::string name;
  int32_t dtype = YOKE_F32;
  std::vector<int64_t> shape;
  std::string bytes;
};

// Returns a tensor whose element i is start + i.
inline HfTensor counting(const std::string& name, std::vector<int64_t> shape, float start = 0) {
  HfTensor t{name, YOKE_F32, std::move(shape), ""};
  const int64_t count = numel(t.shape.data(), static_cast<int32_t>(t.shape.size()));
  for (int64_t i = 0; i < count; ++i) {
    const float value = start + static_cast<float>(i);
    t.bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  return t;
}

inline std::string safetensors_file(const std::vector<HfTensor>& tensors) {
  std::vector<SafetensorsTensor> entries;
  for (const HfTensor& t : tensors) entries.push_back({t.name, t.dtype, t.shape, 0, 0});
  std::string file = make_safetensors_header(&entries, {{"format", "pt"}});
  for (const HfTensor& t : tensors) file += t.bytes;
  return file;
}

// Writes model-<key>.safetensors for each part, and an index of the tensors in them.
inline void write_shards(const TempFolder& folder,
                         const std::map<std::string, std::vector<HfTensor>>& parts) {
  std::string map;
  for (const auto& [key, tensors] : parts) {
    const std::string name = "model-" + key + ".safetensors";
    folder.write(name, safetensors_file(tensors));
    for (const HfTensor& t : tensors)
      map += (map.empty() ? "\"" : ", \"") + t.name + "\": \"" + name + "\"";
  }
  folder.write("model.safetensors.index.json",
               R"({"metadata": {"total_size": 1}, "weight_map": {)" + map + "}}");
}

}  // namespace yoke::testing
