// Defines where a checkpoint stores each tensor, by file and offset, and from which pieces it was
// written. Does not need LibTorch.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/checkpoint/safetensors.hpp"
#include "core/checkpoint/strided_span.hpp"

namespace yoke {

// Bytes of a checksum chunk. A piece has one checksum for each chunk, so that a reader can verify a
// part of it without reading the rest.
constexpr int64_t kChunkBytes = int64_t{4} << 20;

// A StoredPiece is the part of a tensor that one rank wrote.
struct StoredPiece {
  StridedSpan at;             // elements of the tensor
  std::vector<uint32_t> crc;  // CRC32C of each chunk of its elements; the last may be shorter
  int32_t rank = -1;          // rank that wrote it; known only during a save, else -1
};

struct StoredTensor {
  std::string name, kind;  // kind: "param", or the kind of an optimizer state
  int32_t dtype = 0;       // YOKE_F32 ...
  std::vector<int64_t> shape;
  std::string file;                 // name of its file
  uint64_t offset = 0;              // offset of its first byte in the file
  std::vector<StoredPiece> pieces;  // sorted by `begin`; together they tile the tensor

  int64_t numel() const;
  int64_t item_bytes() const;
  uint64_t bytes() const { return static_cast<uint64_t>(numel() * item_bytes()); }
  // Returns its name inside the safetensors file: "<name>" for a param, else "<name>.<kind>".
  std::string stored_name() const;
  std::string describe() const;  // "tensor 'x' (exp_avg)"
};

// A StoredFile is a file of a checkpoint. Its head is everything before the tensors; a file without
// tensors, such as config.json, consists of a head only.
struct StoredFile {
  std::string name;
  uint64_t bytes = 0;
  uint64_t head_bytes = 0;
  uint32_t head_crc = 0;  // CRC32C of the head
};

struct LaidOutFile {
  StoredFile file;
  std::string head;  // contents of the head
};

// Assigns a file and an offset to every tensor and returns all files. The kind "param" goes into
// model*.safetensors, the rest into optimizer*.safetensors. Tensors are sorted by item size and
// name, so that the files do not depend on the layout of the ranks that write them. If either kind
// exceeds max_file_bytes, its tensors are distributed over several files. The files include Hugging
// Face's index, if the weights are split, and `texts`, the contents of more files by name.
std::vector<LaidOutFile> lay_out(std::vector<StoredTensor>* tensors,
                                 const std::map<std::string, std::string>& texts,
                                 uint64_t max_file_bytes);

}  // namespace yoke
