#include "core/model/init.hpp"

#include <cmath>

namespace yoke {

uint64_t fnv1a64(std::string_view text) {
  uint64_t hash = 0xCBF29CE484222325ull;
  for (const char c : text) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001B3ull;
  }
  return hash;
}

void init_uniform(std::string_view name, uint64_t seed, double std, int64_t begin, int64_t count, float* dst) {
  const uint64_t key = fnv1a64(name) ^ seed;
  const double sqrt3 = std::sqrt(3.0);
  // One multiplication after the other, as in the definition: sqrt3 * std first would round differently.
  for (int64_t i = 0; i < count; ++i) {
    uint64_t z = key + static_cast<uint64_t>(begin + i + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    const double u = static_cast<double>(static_cast<int32_t>(z >> 40)) * 0x1p-24;
    dst[i] = static_cast<float>((2 * u - 1) * sqrt3 * std);
  }
}

}  // namespace yoke
