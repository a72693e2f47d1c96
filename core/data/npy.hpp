// The header of a .npy file of NumPy. No LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/data/mapped_file.hpp"

namespace yoke {

// An array of token ids in a .npy file: little-endian, one dimension.
struct NpyArray {
  size_t header_bytes = 0;
  size_t id_bytes = 2;
  bool is_signed = false;
  uint64_t count = 0;  // number of elements that the header promises
};

// Returns whether the file starts as a .npy file does.
bool is_npy(const MappedFile& file);

// Reads the header. The caller checks the size of the file. Throws Error: INVALID_ARGUMENT if the
// file is no .npy file, or for another dtype, order or number of dimensions; DATA_LOSS if the
// header is damaged.
NpyArray read_npy_header(const MappedFile& file);

}  // namespace yoke
