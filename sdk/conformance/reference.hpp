// The reference of the numeric checks: training on one rank in fp64. It applies the formulas of the
// contract in the plainest way, over the neutral callbacks, and shares no code with any backend.
#pragma once

#include "sdk/conformance/run.hpp"

namespace yoke::conformance {

// A usual mistake, which the reference makes if it is asked to. If the numbers of a backend are
// those of the reference with one mistake, this is the mistake of the backend.
enum class Mistake {
  kNone,
  kTimesRanks,       // the gradient is multiplied by the number of data ranks
  kOverRanks,        // the gradient is divided by it
  kTimesMicros,      // the gradient is multiplied by the number of micro-batches
  kOverMicros,       // the gradient is divided by it
  kNoReduction,      // rank 0 uses its own gradient
  kMeanOfMeans,      // each micro-batch is divided by its own number of targets
  kClipBeforeSum,    // each rank clips its own gradient
  kClipShare,        // each rank clips its own gradient, at its share of the bound
  kNormBeforeSum,    // the norm is that of the gradient of rank 0
  kNoClip,           // gradients are not clipped
  kKeepsGradient,    // the gradient of a step is added to that of the step before
  kOtherCorrection,  // the moments are not corrected, or they are in a kind that does not do so
  kEpsInside,        // eps is added under the root
  kOtherDecay,       // weight decay changes the gradient, or for Adam the parameter
  kNewMoment,        // Lion takes the direction from the new moment
  kLooksNotAhead,    // Muon orthogonalizes the moment itself
  kUnscaled,         // Muon's step does not depend on the shape of the matrix
  kNoDecay,          // no parameter decays
  kDecaysAll,        // every parameter decays
  kPeakRate,         // the learning rate is that of the optimizer instead of that of the step
};

// Where the reference starts, and what it does wrong.
struct ReferenceStart {
  const State* state = nullptr;  // state to resume from; NULL = initial values
  int64_t first_step = 1;
  Mistake mistake = Mistake::kNone;
};
// Trains with the model, batches and optimizer of the spec and returns the results. The degrees of
// the spec matter only for a mistake.
Trace reference_trace(Subject& subject, const RunSpec& spec, const ReferenceStart& start = {});

// Returns the gradient of one step from the initial values, over a batch of the caller. Its keys
// are those of the parameters, with the kind "grad".
State reference_gradient(Subject& subject, const ModelSpec& model, const YokeBatch& batch);

}  // namespace yoke::conformance
