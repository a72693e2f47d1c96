// Numbers as people read them. No LibTorch.
#pragma once

#include <cstdint>
#include <string>

namespace yoke {

// "1,234,567"; rounded to a whole number.
std::string with_commas(double value);

// "512 B", "3.2 MiB", "1.9 GiB"
std::string bytes_text(uint64_t bytes);

// "42s", "3m 04s", "2h 05m", "3d 04h"; rounded up.
std::string duration_text(double seconds);

}  // namespace yoke
