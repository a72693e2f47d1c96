// Writes the weights of a checkpoint as a folder that Hugging Face's transformers can open. Does
// not need LibTorch.
#pragma once

#include <cstdint>
#include <string>

#include "yoke/parallel_backend.h"

namespace yoke {

struct ExportRequest {
  std::string checkpoint;    // path of the checkpoint
  std::string folder;        // path of the folder to create; it must not exist
  int32_t dtype = YOKE_F32;  // YOKE_F32, or YOKE_BF16 rounded to nearest even
  // Largest size of a file of weights. The tensors of a larger model are divided among several
  // files. A single tensor is never split, so its file may be larger.
  uint64_t max_file_bytes = 5'000'000'000;
  // Write only the low-rank adapters, in PEFT's format; see adapter.hpp. Otherwise the weights that
  // an adapter changes are written with its product added.
  bool adapters_only = false;
};

struct Exported {
  int64_t step = 0;  // step of the checkpoint
  size_t tensors = 0;
  size_t files = 0;    // safetensors files
  uint64_t bytes = 0;  // size of all files
  // A sentence that says why a power failure may still lose the folder; "" = it cannot.
  std::string warning;
};

// Writes config.json and model.safetensors, or, for a large model, several files and their index,
// and the checkpoint's companion_files(). With adapters_only it writes adapter_config.json and
// adapter_model.safetensors instead.
// Every byte that it reads is verified. The folder appears completely or not at all. At most one
// chunk (kChunkBytes) of a tensor is in memory.
//
// Throws Error: FAILED_PRECONDITION if the folder exists or the checkpoint has no config.json or,
// with adapters_only, no adapters, and whatever CheckpointReader and File throw.
Exported export_hf(const ExportRequest& request);

}  // namespace yoke
