// Reports a comparison as text: the table of cases, what differs and why, which case is the
// fastest. Does not need LibTorch.
#pragma once

#include <string>
#include <vector>

#include "core/compare/comparison.hpp"

namespace yoke::compare {

// Returns the peak memory of the rank that needs the most, over all repeats, in bytes; NaN =
// unknown.
double peak_memory(const CaseResult& c);
// Returns the payload bytes of rank 0 in the last step; NaN = unknown.
double step_traffic(const CaseResult& c);

// Return the table of cases: its header, and one row for the reference and for each case.
std::vector<std::string> table_header();
std::vector<std::vector<std::string>> table_rows(const Comparison& comparison);

// Returns one entry for every case that did not pass: what is wrong, where, and the likely cause.
// An entry may have several lines.
std::vector<std::string> problems(const Comparison& comparison);

// Returns "fastest: ox, 1.3 times as fast as mule (1.2 .. 1.5)", or why no case is named; "" if
// fewer than two cases have times.
std::string speed_text(const Comparison& comparison);

// Returns the whole comparison as JSON for programs, with every step of the first repeat of each
// case.
std::string to_json(const Comparison& comparison, const std::string& command, int exit_code);

// Return the table of cases as Markdown and as CSV.
std::string to_markdown(const Comparison& comparison);
std::string to_csv(const Comparison& comparison);

}  // namespace yoke::compare
