// Damages files at random.
#pragma once

#include <random>
#include <string>

namespace yoke::testing {

using Random = std::mt19937_64;

// Returns `good` with one to four changes: of bits, bytes, numbers, or words that readers know,
// cuts and copies. In half of the cases the length in a safetensors file, or the checksum in a
// manifest, is adjusted, so that the reader accepts it and reaches the damage behind it.
std::string mutate(const std::string& file_name, const std::string& good, Random& random);

}  // namespace yoke::testing
