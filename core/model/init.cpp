// A random generator with a state would have to be advanced past all elements that other ranks own.
// Here the index is the state: each element costs one hash, and the loop over elements vectorises.
// The kernel is compiled for several instruction sets, and each gives the same bits; see
// core/kernels.
#include "core/model/init.hpp"

#include "core/kernels/cpu_kernels.hpp"

namespace yoke {

uint64_t fnv1a64(std::string_view text) {
  uint64_t hash = 0xCBF29CE484222325ull;
  for (const char c : text) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001B3ull;
  }
  return hash;
}

void init_uniform(
    std::string_view name, uint64_t seed, double std, int64_t begin, int64_t count, float* dst) {
  cpu_kernels().init_uniform(fnv1a64(name) ^ seed, std, begin, count, dst);
}

}  // namespace yoke
