// The oracle of the numeric checks: one rank, fp64, the formulas of the contract written down in
// the plainest way over the neutral callbacks. Shares no code with any backend.
#pragma once

#include "sdk/conformance/run.hpp"

namespace yoke::conformance {

struct ReferenceStart {
  const State* state = nullptr;  // to go on from; NULL = initial values
  int64_t first_step = 1;
};
// The trace of a run of this model, batch and optimizer, whatever its degrees.
Trace reference_trace(Subject& subject, const RunSpec& spec, const ReferenceStart& start = {});

}  // namespace yoke::conformance
