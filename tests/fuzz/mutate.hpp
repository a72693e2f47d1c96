// Random damage to files.
#pragma once

#include <random>
#include <string>

namespace yoke::testing {

using Random = std::mt19937_64;

// Returns `good` with one to four changes: changed bits, bytes, numbers or keywords, truncation,
// removed or repeated ranges. In half of the cases the length in a safetensors file, or the
// checksum in a manifest, is adjusted, so that the reader does not stop there and reaches the other
// damage.
std::string mutate(const std::string& file_name, const std::string& good, Random& random);

}  // namespace yoke::testing
