// The header of a safetensors file: 8 bytes length n (little-endian), n bytes JSON, then the
// tensors.
//
// The reader is stricter than others, so that one file means one thing to every reader. It refuses,
// before it takes memory for anything that the file announces:
//   length     n outside [2, min(100 MB, file - 8)]; 8 + n not a multiple of 8
//   text       not starting with '{'; padding other than trailing spaces; not UTF-8; not one
//   object;
//              a key twice; keys other than dtype, shape and data_offsets
//   names      empty, above 512 bytes, with control characters; more than 1,000,000 tensors
//   metadata   other than string to string; above 64 KiB
//   tensors    unknown dtype; more than 8 dims; a dim above 2^48; sizes beyond 64 bits; offsets
//   whose
//              difference is not the size
//   data       a hole or an overlap between tensors, or before or behind them
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
  uint64_t begin = 0, end = 0;  // bytes in the file
};

struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors;  // in the order of their data
  std::map<std::string, std::string> metadata;
  uint64_t data_begin = 0;  // bytes before the first tensor
};

constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;
constexpr size_t kMaxTensorName = 512;
constexpr size_t kMaxTensorDims = 8;
constexpr int64_t kMaxTensorDim = int64_t{1} << 48;

const char* safetensors_dtype(int32_t dtype);           // "F32"; INVALID_ARGUMENT if it has none
int32_t dtype_from_safetensors(std::string_view name);  // 0 = unknown

// Bytes of a tensor; false if a dim is out of range or the size does not fit into 63 bits.
bool tensor_bytes(const std::vector<int64_t>& shape, int32_t dtype, uint64_t* out);

// Reads and checks the header. DATA_LOSS naming the file, the tensor and the rule that it breaks.
SafetensorsHeader read_safetensors_header(const File& file);
// The same for a text in memory; file_bytes is the size that the whole file has.
SafetensorsHeader parse_safetensors_header(std::string_view text, uint64_t file_bytes);

// Lays out tensors one behind the other in the given order: sets begin and end of each and returns
// all bytes before the data (length and padded JSON, a multiple of 64).
std::string make_safetensors_header(std::vector<SafetensorsTensor>* tensors,
                                    const std::map<std::string, std::string>& metadata);

}  // namespace yoke
