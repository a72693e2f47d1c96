// Counter-based initial values. Element i of a parameter depends only on the name of the parameter,
// the seed and i. So any rank can compute any part of a parameter, and the model starts with the
// same values however it is sharded. Does not need LibTorch.
#pragma once

#include <cstdint>
#include <string_view>

namespace yoke {

// Returns the 64-bit FNV-1a hash.
uint64_t fnv1a64(std::string_view text);

// Writes elements [begin, begin + count) of the row-major parameter `name` to dst. They are
// uniformly distributed with mean 0 and standard deviation `std`. Any thread. The definition of
// element i:
//
//   key     = fnv1a64(name) xor seed
//   z       = mix64(key + (i + 1) * 0x9E3779B97F4A7C15), the output function of splitmix64
//   u       = (z >> 40) / 2^24, in [0, 1)
//   element = (2u - 1) * sqrt(3) * std, computed in double from left to right and rounded to float
void init_uniform(
    std::string_view name, uint64_t seed, double std, int64_t begin, int64_t count, float* dst);

}  // namespace yoke
