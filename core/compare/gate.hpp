// Gates are conditions that a comparison must meet, such as "tps>=0.95". Does not need LibTorch.
#pragma once

#include <string>
#include <vector>

#include "core/compare/comparison.hpp"

namespace yoke::compare {

struct Gate {
  std::string text;  // text of the gate as given
  // What the gate bounds. loss, grad_norm and param are the largest differences from the reference;
  // tps, step_ms, memory and traffic are ratios to the first case that ran.
  std::string metric;
  bool at_least = false;  // true for >=, false for <=
  double bound = 0;
};

// Parses "METRIC<=NUMBER" or "METRIC>=NUMBER". Throws Error (INVALID_ARGUMENT).
Gate parse_gate(const std::string& text);

// Returns the result of the gate for each case that ran. A case fails if the value of the metric is
// unknown.
std::vector<GateResult> measure(const Gate& gate, const Comparison& comparison);

// Returns a line for people about a result.
std::string result_text(const GateResult& result);

}  // namespace yoke::compare
