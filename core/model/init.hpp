// Counter-based initial values: element i of a parameter depends only on the parameter's name, the
// seed and i, so any rank can make any part of any layout. Torch-free.
#pragma once

#include <cstdint>
#include <string_view>

namespace yoke {

// FNV-1a, 64 bits.
uint64_t fnv1a64(std::string_view text);

// dst[0, count) = elements [begin, begin + count) of the row-major parameter `name`: uniform with
// standard deviation `std`. With key = fnv1a64(name) xor seed, z = the finaliser of splitmix64
// applied to key + (i + 1) * 0x9E3779B97F4A7C15 and u = (z >> 40) / 2^24, element i is (2u - 1) *
// sqrt(3) * std, computed in double and rounded to float. Any thread.
void init_uniform(
    std::string_view name, uint64_t seed, double std, int64_t begin, int64_t count, float* dst);

}  // namespace yoke
