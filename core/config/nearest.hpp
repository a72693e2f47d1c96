// "Did you mean ...?"
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace yoke {

// Insertions, deletions, replacements and swaps of neighbours that turn a into b.
int edit_distance(std::string_view a, std::string_view b);

// The candidate that `name` was probably meant to be; "" if none is close.
std::string nearest(std::string_view name, const std::vector<std::string>& candidates);

// "; did you mean 'x'?", or "".
std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates);

// "a, b, c"
std::string join(const std::vector<std::string>& words, std::string_view separator = ", ");

}  // namespace yoke
