// A comparison in words: the table of cases, what differs and why, who is faster. Does not need LibTorch.
#pragma once

#include <string>
#include <vector>

#include "core/compare/comparison.hpp"

namespace yoke::compare {

double peak_memory(const CaseResult& c);   // bytes of rank 0 at the most; NaN = not known
double step_traffic(const CaseResult& c);  // payload bytes of rank 0 in the last step

// Header and rows, a row for each case.
std::vector<std::string> table_header();
std::vector<std::vector<std::string>> table_rows(const Comparison& comparison);

// For every case that did not pass: what, where and why. One entry may have several lines.
std::vector<std::string> problems(const Comparison& comparison);

// "fastest: ox, 1.3 times as fast as mule (1.2 .. 1.5)", or why nobody is named.
std::string speed_text(const Comparison& comparison);

// All of it, with every step of the first repeat of each case: for programs.
std::string to_json(const Comparison& comparison, const std::string& command, int exit_code);

std::string to_markdown(const Comparison& comparison);
std::string to_csv(const Comparison& comparison);

}  // namespace yoke::compare
