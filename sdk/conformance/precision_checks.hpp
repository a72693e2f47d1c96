// A comparison of gradients that other checks use, too.
#pragma once

#include "sdk/conformance/run.hpp"

namespace yoke::conformance {

// Trains one step in fp32 and compares the gradient with that of the reference. Other dtypes are
// left out. Throws Failed.
void expect_gradients(Subject& subject, const ParallelBackend& backend, RunSpec spec);

}  // namespace yoke::conformance
