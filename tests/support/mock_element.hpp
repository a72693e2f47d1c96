// Reads and writes one element of an array of fp64, fp32 or bf16 as a double. Writing rounds to the
// nearest value.
#pragma once

#include <cstdint>
#include <cstring>

#include "yoke/parallel_backend.h"

namespace yoke::testing {

inline double get_element(const void* data, int32_t dtype, int64_t i) {
  if (dtype == YOKE_F64) return static_cast<const double*>(data)[i];
  if (dtype == YOKE_F32) return static_cast<const float*>(data)[i];
  const uint32_t bits = uint32_t{static_cast<const uint16_t*>(data)[i]} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline void put_element(void* to, int32_t dtype, int64_t i, double value) {
  char* const data = static_cast<char*>(to);
  const auto f = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &f, sizeof bits);
  const auto half = static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  if (dtype == YOKE_F64) std::memcpy(data + 8 * i, &value, 8);
  if (dtype == YOKE_F32) std::memcpy(data + 4 * i, &f, 4);
  if (dtype == YOKE_BF16) std::memcpy(data + 2 * i, &half, 2);
}

}  // namespace yoke::testing
