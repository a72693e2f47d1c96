// Initial weights from files: a folder as Hugging Face's transformers writes it, or a checkpoint of
// Yoke. Does not need LibTorch.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/base/files.hpp"
#include "core/checkpoint/safetensors.hpp"
#include "core/checkpoint/shapes.hpp"

namespace yoke {

// The weights in a folder: its model.safetensors, or the files that its
// model.safetensors.index.json names. All headers are checked before anything is used. The tensors
// themselves stay on disk and are read on request. Any thread may call any method.
class HfWeights {
 public:
  // Throws Error: NOT_FOUND if the folder has neither file, DATA_LOSS with the file and the tensor
  // if something is damaged or contradictory.
  explicit HfWeights(const std::string& folder);
  // The weights in a single file of a folder, whatever else there is. Throws the same errors.
  HfWeights(const std::string& folder, const std::string& file);

  // Returns the names and shapes of all tensors.
  Shapes shapes() const;
  // Puts `prefix` before the names of all tensors except for those in `complete`.
  void add_prefix(const std::string& prefix, const std::set<std::string>& complete);
  // Reads elements [begin, begin + count) of the tensor `name` into dst, converted to fp32 from
  // fp64, fp32, bf16 or fp16. Throws Error if the file cannot be read.
  void read(const std::string& name, int64_t begin, int64_t count, float* dst) const;

 private:
  struct Place {
    size_t file;  // index in files_
    SafetensorsTensor tensor;
  };
  void add_file(const std::string& path);
  void add_indexed_files(const std::string& folder, const std::string& index_path);

  std::vector<File> files_;
  std::map<std::string, Place> tensors_;
};

// Reads elements [begin, begin + count) of a parameter into dst as fp32. One thread at a time.
using ReadWeights =
    std::function<void(const std::string& name, int64_t begin, int64_t count, float* dst)>;

// Opens the weights in a folder for a model with these parameters. If the folder is a checkpoint of
// Yoke, everything that is read is verified against its checksums.
//
// `ties` maps the name of a parameter to the parameter that it shares its values with. A tied name
// may be absent from the files; if it is present, it must hold the same values.
//
// optional_prefix: files that have no name with this prefix are those of a part of the model, in
// which names lack it. Names that the model has without the prefix, such as that of the head, do
// not get it.
//
// Throws Error: what HfWeights throws, and FAILED_PRECONDITION with the differences if names,
// shapes or tied values do not match.
ReadWeights open_weights(const std::string& folder,
                         const Shapes& model,
                         const std::map<std::string, std::string>& ties,
                         const std::string& optional_prefix = "");

}  // namespace yoke
