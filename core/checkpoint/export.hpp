// Writes the weights of a checkpoint as a folder that Hugging Face's transformers opens. No
// LibTorch.
#pragma once

#include <cstdint>
#include <string>

#include "yoke/parallel_backend.h"

namespace yoke {

struct ExportRequest {
  std::string checkpoint;
  std::string folder;                       // is made; must not exist
  int32_t dtype = YOKE_F32;                 // or YOKE_BF16, rounded to nearest even
  uint64_t max_file_bytes = 5'000'000'000;  // a larger model is split; a tensor never is
};

struct Exported {
  int64_t step = 0;
  size_t tensors = 0, files = 0;
  uint64_t bytes = 0;
};

// config.json, model.safetensors or its parts and their index. Every byte of the checkpoint that is
// read is checked; the folder appears whole or not at all; one chunk of a tensor is in memory.
// Throws Error: FAILED_PRECONDITION if the folder exists or the checkpoint has no config.json, and
// as CheckpointReader and File do.
Exported export_hf(const ExportRequest& request);

}  // namespace yoke
