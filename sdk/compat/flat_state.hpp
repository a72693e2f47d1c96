// Shows the state of a rank to the visitor of a checkpoint: the parameters and moments that it
// owns, frozen parameters, and the number of the last update.
#pragma once

#include "sdk/compat/optimizer.hpp"
#include "sdk/compat/parameters.hpp"
#include "yoke/backend.hpp"

namespace yoke::compat {

// What a rank shows, and which copy of it.
struct FlatState {
  const YokeModelSummary& model;
  const FlatLayout& layout;
  const Parameters& parameters;
  Optimizer& optimizer;
  int64_t replica;  // number of this rank among those that own the same parts; 0 is saved
  int64_t rank;     // number among ranks with the same part, which copy the frozen parameters
};

// Visits everything. A load stores values in master copies, moments and the step, and publishes the
// parameters that this rank owns; those of other ranks are not gathered. Throws the visitor's
// Error.
void visit(const FlatState& state, const YokeCheckpointArgs& args);

}  // namespace yoke::compat
