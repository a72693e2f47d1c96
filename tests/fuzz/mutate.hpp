// Random damage to files.
#pragma once

#include <random>
#include <string>

namespace yoke::testing {

using Random = std::mt19937_64;

// One to four changes: bits, bytes, cuts, copies, numbers, and words that readers know. The changes
// of a safetensors file and of a manifest are half the time made to fit the length and the checksum
// around them, so that they reach what lies behind.
std::string mutate(const std::string& file_name, const std::string& good, Random& random);

}  // namespace yoke::testing
