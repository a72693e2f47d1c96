// The header of a safetensors file. The file consists of 8 bytes with the length n of the header
// (little-endian), n bytes of JSON, and the tensors.
//
// This reader is stricter than others, so that a file that it accepts means the same to every
// reader. Before it allocates memory of a size given in the file, it rejects:
//
//   length     n outside [2, min(100 MB, file - 8)]; 8 + n not a multiple of 8
//   text       text that does not start with '{'; padding that is not trailing spaces; text that
//              is not UTF-8 or not one object; a duplicate key; a key of a tensor that is not
//              dtype, shape or data_offsets
//   names      empty; longer than 512 bytes; with control characters; more than 1,000,000 tensors
//   metadata   a value that is not a string; more than 64 KiB
//   tensors    an unknown dtype; more than 8 dims; a dim above 2^48; a size beyond 64 bits;
//              offsets whose difference is not the size
//   data       a gap or an overlap between tensors; bytes before the first or after the last one
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace yoke {

class File;

struct SafetensorsTensor {
  std::string name;
  int32_t dtype = 0;  // YOKE_F32 ...
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // range of its bytes in the file
};

struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors;       // sorted by `begin`
  std::map<std::string, std::string> metadata;  // the object "__metadata__"
  uint64_t data_begin = 0;                      // offset of the first tensor
};

constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;
constexpr size_t kMaxTensorName = 512;
constexpr size_t kMaxTensorDims = 8;
constexpr int64_t kMaxTensorDim = int64_t{1} << 48;

// Returns the name of a dtype in the format, such as "F32". Throws Error (INVALID_ARGUMENT) if it
// has none.
const char* safetensors_dtype(int32_t dtype);
// Returns the dtype with this name; 0 = unknown.
int32_t dtype_from_safetensors(std::string_view name);

// Sets *out to the bytes of a tensor. Returns false if a dim is out of range or the size does not
// fit into 63 bits.
bool tensor_bytes(const std::vector<int64_t>& shape, int32_t dtype, uint64_t* out);

// Reads and checks the header. Throws Error: DATA_LOSS with the file, the tensor and the violated
// rule, and whatever File throws.
SafetensorsHeader read_safetensors_header(const File& file);
// Checks the JSON of a header that is in memory; file_bytes is the size of the whole file. Its
// errors do not name the file.
SafetensorsHeader parse_safetensors_header(std::string_view text, uint64_t file_bytes);

// Lays out tensors without gaps, in the given order: sets `begin` and `end` of each and returns all
// bytes before the data, which are the length and the JSON, padded to a multiple of 64.
std::string make_safetensors_header(std::vector<SafetensorsTensor>* tensors,
                                    const std::map<std::string, std::string>& metadata);

}  // namespace yoke
