// Conditions that a comparison must meet: "tps>=0.95". Does not need LibTorch.
#pragma once

#include <string>
#include <vector>

#include "core/compare/comparison.hpp"

namespace yoke::compare {

struct Gate {
  std::string text;    // as given
  std::string metric;  // loss, grad_norm, param: largest differences; tps, step_ms, memory,
                       // traffic: ratios to the first case
  bool at_least = false;
  double bound = 0;
};

// "METRIC<=NUMBER" or "METRIC>=NUMBER". Throws Error(INVALID_ARGUMENT).
Gate parse_gate(const std::string& text);

// Why a case does not pass, a line for each; empty = all pass. A metric that is not known fails.
std::vector<std::string> failures(const Gate& gate, const Comparison& comparison);

}  // namespace yoke::compare
