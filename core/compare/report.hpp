// Writes a comparison as one HTML file that needs no network and no script and is legible on light
// and dark screens. Does not need LibTorch.
#pragma once

#include <string>

#include "core/compare/comparison.hpp"

namespace yoke::compare {

// Returns the HTML. `command`, the command line that repeats the comparison, is included. Five
// cases of 500 steps take about 300 kB.
std::string to_html(const Comparison& comparison, const std::string& command);

}  // namespace yoke::compare
