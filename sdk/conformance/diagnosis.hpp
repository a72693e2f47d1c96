// Finds the likely cause of wrong numbers.
#pragma once

#include <string>

#include "sdk/conformance/run.hpp"

namespace yoke::conformance {

struct Diagnosis {
  std::string text;  // continues the sentence on a difference: "; the numbers are those of ..."
  std::string fix;   // what to do; "" = nothing is known
};

// Returns what explains that a run with this spec has other numbers than the reference. It trains
// again, with up to three steps.
Diagnosis diagnose(Subject& subject, const ParallelBackend& backend, const RunSpec& spec);

}  // namespace yoke::conformance
