// manifest.json: what a checkpoint consists of. Its last line holds a CRC32C of all lines before.
#pragma once

#include <string>
#include <vector>

#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/layout.hpp"

namespace yoke {

struct Manifest {
  CheckpointInfo info;     // path is not part of the text
  int32_t world_size = 1;  // of the ranks that saved
  std::vector<StoredFile> files;
  std::vector<StoredTensor> tensors;  // by name and kind
};

std::string to_text(const Manifest& manifest);
// Parses and checks: checksum, version, plain file names, known dtypes, sizes, and that pieces tile
// each tensor. DATA_LOSS, or FAILED_PRECONDITION if a newer Yoke wrote it.
Manifest parse_manifest(const std::string& text);

// All checksums of a piece as one string of hexadecimal digits, and back (DATA_LOSS if it is none).
std::string to_hex(const std::vector<uint32_t>& crc);
std::vector<uint32_t> from_hex(const std::string& digits);

}  // namespace yoke
