// Reports a comparison to people: the table of cases, and what differs and why. Does not need
// LibTorch.
#pragma once

#include <string>
#include <vector>

#include "core/compare/comparison.hpp"

namespace yoke::compare {

// Returns the peak memory of the rank that needs the most, over all repeats, in bytes; NaN =
// unknown.
double peak_memory(const CaseResult& c);
// Returns the payload bytes of rank 0 in a step, the mean over all steps; NaN = unknown.
double step_traffic(const CaseResult& c);
// Returns the tokens of a step, as the run counted them, else as the plan says; NaN = unknown.
double step_tokens(const Comparison& comparison, const CaseResult& c);
// Returns the tokens that the median step processes in a second; NaN = unknown.
double tokens_per_second(const Comparison& comparison, const CaseResult& c);
// Returns the step rate relative to the first case that has times; NaN = unknown.
double speed(const Comparison& comparison, const CaseResult& c);

// Return the table of cases: its header, and one row for the reference and for each case.
std::vector<std::string> table_header();
std::vector<std::vector<std::string>> table_rows(const Comparison& comparison);

// Returns one entry for every case that did not pass: what is wrong, where, and the likely cause.
// An entry may have several lines.
std::vector<std::string> problems(const Comparison& comparison);

// Returns a sentence for each case that passed although it exceeds a bound: by design, with its
// loss and its traffic, or because the difference is rounding.
std::vector<std::string> remarks(const Comparison& comparison);

}  // namespace yoke::compare
