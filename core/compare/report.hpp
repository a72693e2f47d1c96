// A comparison as one HTML file: no network, no script, legible in light and dark. Does not need LibTorch.
#pragma once

#include <string>

#include "core/compare/comparison.hpp"

namespace yoke::compare {

// command: the words that repeat it. At most some 300 kB for 5 cases of 500 steps.
std::string to_html(const Comparison& comparison, const std::string& command);

}  // namespace yoke::compare
