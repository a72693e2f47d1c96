// Numbers formatted for people, and texts with replaced parts.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace yoke {

// Returns the value rounded to a whole number, with separators: "1,234,567".
std::string with_commas(double value);

// Returns a size in the largest binary unit that fits: "512 B", "3.2 MiB", "1.9 GiB".
std::string bytes_text(uint64_t bytes);

// Returns a time limit in seconds: "60 s", "0.3 s".
std::string seconds_text(std::chrono::milliseconds time);

// Returns a duration, rounded up to a second, in at most two units: "42s", "3m 04s", "3d 04h". A
// negative duration counts as 0.
std::string duration_text(double seconds);

// Returns the text with every occurrence of `from`, which is not empty, replaced by `to`.
std::string replace_all(std::string_view text, std::string_view from, std::string_view to);

}  // namespace yoke
