// What is wrong with a tensor, for messages, and hashes of memory.
#pragma once

#include <cstdint>
#include <string>

#include "yoke/parallel_backend.h"

namespace yoke::validate {

// Returns what is wrong with a tensor of the contract on `device`, or "". what: its name. It must
// be compact and of one of the seven dtypes.
std::string tensor_fault(const char* what, const YokeTensor* tensor, const YokeDevice& device);
bool is_known_dtype(int32_t dtype);
bool is_float(int32_t dtype);
// Returns "fp32 [2, 3]".
std::string shape_text(int32_t dtype, const int64_t* shape, int32_t ndim);
std::string shape_text(const YokeTensor& tensor);

uint64_t mixed(uint64_t hash, uint64_t value);
// Hashes bytes in CPU memory.
uint64_t hash_of(const void* memory, int64_t size);
int64_t bytes_of(const YokeTensor& tensor);
// Hashes elements so that the hashes of parts add up to that of the whole: each element counts with
// its index in the tensor. begin, run, stride: as in YokePiece. bytes: of one element.
uint64_t hash_of_piece(const YokePiece& piece);
// Returns whether a compact tensor in CPU memory contains an infinity or NaN.
bool has_nonfinite(const YokeTensor& tensor);

}  // namespace yoke::validate
