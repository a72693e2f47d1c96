// The finaliser of splitmix64: a bijection of 64-bit numbers whose output bits each depend on all
// input bits.
#pragma once

#include <cstdint>

namespace yoke {

inline uint64_t mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

}  // namespace yoke
