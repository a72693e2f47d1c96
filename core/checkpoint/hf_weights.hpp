// Weights in files: a folder as Hugging Face's transformers writes it, or a checkpoint of Yoke. No
// LibTorch.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/base/files.hpp"
#include "core/checkpoint/safetensors.hpp"
#include "core/checkpoint/shapes.hpp"

namespace yoke {

// model.safetensors of a folder, or the files that model.safetensors.index.json names. Whatever
// they announce is checked before it is used; the tensors themselves are read when asked for, so
// nobody holds the model. Any thread.
class HfWeights {
 public:
  // Throws Error: NOT_FOUND if the folder has neither, DATA_LOSS naming the file and the tensor.
  explicit HfWeights(const std::string& folder);

  Shapes shapes() const;
  // dst[0, count) = elements [begin, begin + count) of a tensor of fp64, fp32, bf16 or fp16, which
  // becomes fp32.
  void read(const std::string& name, int64_t begin, int64_t count, float* dst) const;

 private:
  struct Place {
    size_t file;
    SafetensorsTensor tensor;
  };
  void add_file(const std::string& path);
  void add_indexed_files(const std::string& folder, const std::string& index_path);

  std::vector<File> files_;
  std::map<std::string, Place> tensors_;
};

// Elements [begin, begin + count) of a parameter as fp32. One thread at a time.
using ReadWeights =
    std::function<void(const std::string& name, int64_t begin, int64_t count, float* dst)>;

// Opens the weights in a folder for a model with these parameters; of a checkpoint of Yoke what is
// read is checked against its checksums too. `ties`: names that may be absent, for they mean the
// same as another parameter; one that is there must hold the same values.
// Throws as HfWeights does, and FAILED_PRECONDITION naming the differences of names and shapes.
ReadWeights open_weights(const std::string& folder,
                         const Shapes& model,
                         const std::map<std::string, std::string>& ties);

}  // namespace yoke
