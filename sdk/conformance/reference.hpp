// The reference of the numeric checks: training on one rank in fp64. It applies the formulas of the
// contract in the plainest way, over the neutral callbacks, and shares no code with any backend.
#pragma once

#include "sdk/conformance/run.hpp"

namespace yoke::conformance {

// Where the reference starts.
struct ReferenceStart {
  const State* state = nullptr;  // state to resume from; NULL = initial values
  int64_t first_step = 1;
};
// Trains with the model, batches and optimizer of the spec and returns the results. The degrees of
// the spec do not matter.
Trace reference_trace(Subject& subject, const RunSpec& spec, const ReferenceStart& start = {});

}  // namespace yoke::conformance
