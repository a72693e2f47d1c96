// Writes a comparison for programs and for documents. Does not need LibTorch.
#pragma once

#include <string>

#include "core/compare/comparison.hpp"

namespace yoke::compare {

// Returns the whole comparison as JSON for programs, with every step of the first repeat of each
// case.
std::string to_json(const Comparison& comparison, const std::string& command, int exit_code);

// Returns a line for the reference and for each case, with one plain number per column: bytes,
// milliseconds, fractions. An empty cell is unknown or does not apply.
std::string to_csv(const Comparison& comparison);

// Returns the table of cases as Markdown.
std::string to_markdown(const Comparison& comparison);

}  // namespace yoke::compare
