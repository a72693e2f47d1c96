// Where every tensor and piece of a checkpoint lies.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/checkpoint/safetensors.hpp"
#include "core/checkpoint/strided_span.hpp"

namespace yoke {

// Checksums are taken per chunk of a piece, so that a reader can check just what it needs.
constexpr int64_t kChunkBytes = int64_t{4} << 20;

// A part of a tensor as one rank wrote it; a CRC32C per kChunkBytes of its elements, the last chunk
// may be short.
struct StoredPiece {
  StridedSpan at;
  std::vector<uint32_t> crc;
  int32_t rank = -1;  // of the writer; known only during a save
};

struct StoredTensor {
  std::string name, kind;
  int32_t dtype = 0;
  std::vector<int64_t> shape;
  std::string file;
  uint64_t offset = 0;              // of its first byte in the file
  std::vector<StoredPiece> pieces;  // by begin

  int64_t numel() const;
  int64_t item_bytes() const;
  uint64_t bytes() const { return static_cast<uint64_t>(numel() * item_bytes()); }
  // "<name>" of a param, "<name>.<kind>" else: the name inside its safetensors file.
  std::string stored_name() const;
  std::string describe() const;  // "tensor 'x' (exp_avg)"
};

// Everything in front of the tensors; a file without tensors is all head.
struct StoredFile {
  std::string name;
  uint64_t bytes = 0;
  uint64_t head_bytes = 0;
  uint32_t head_crc = 0;
};

struct LaidOutFile {
  StoredFile file;
  std::string head;
};

// Gives every tensor a file and an offset: "param" in model*.safetensors, the rest in
// optimizer*.safetensors, sorted by item size and name, so that the files do not depend on who
// wrote them. A group above max_file_bytes is split between tensors. Also makes HF's index and
// config.json.
std::vector<LaidOutFile> lay_out(std::vector<StoredTensor>* tensors,
                                 const std::string& hf_config_json,
                                 uint64_t max_file_bytes);

}  // namespace yoke
