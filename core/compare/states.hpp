// Compares the states of two runs after the same step, tensor by tensor. The states are the
// checkpoints that the key record.states makes a run save. Does not need LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/compare/run_facts.hpp"

namespace yoke::compare {

// Difference describes how a tensor b differs from a tensor a. |x| is the Euclidean norm.
struct Difference {
  std::string tensor;             // name
  double norm_a = 0, norm_b = 0;  // |a| and |b|
  double relative = 0;            // |b - a| / |a|
  double largest = 0;             // largest difference of an element
  double factor = 1;              // the k for which k * a is closest to b
  double residual = 0;            // |b - k a| / |b|; 0 = b is a multiple of a
  double rounded = 1;  // share of elements with |b - a| <= 2^-7 |a|; pairs of zeros excluded
  int64_t elements = 0;
  int64_t outside = 0;  // number of elements with |b - a| > atol + rtol |a|
};

struct Tolerance {
  double rtol = 0, atol = 0;
};

// Returns true if the run has saved its state after this step.
bool has_state(const RunFacts& run, int64_t step);

// Compares the parameters after a step, in the order of the model. Both runs must have saved it.
// Throws Error if a state cannot be read.
std::vector<Difference> compare_params(const RunFacts& a,
                                       const RunFacts& b,
                                       int64_t step,
                                       const Tolerance& tolerance);

// Compares the gradients that the optimizer used at a step, after clipping, in the order of the
// model. They are computed from the optimizer's first moment after the step and, for step > 1,
// after the previous step. Empty if a state is missing or the optimizer keeps no moment.
std::vector<Difference> compare_gradients(const RunFacts& a, const RunFacts& b, int64_t step);

// Compares what a step added to each parameter, in the order of the model. Empty if a state before
// or after the step is missing.
std::vector<Difference> compare_updates(const RunFacts& a, const RunFacts& b, int64_t step);

// Return the norm of all tensors of a, or of b, together.
double norm_of_a(const std::vector<Difference>& all);
double norm_of_b(const std::vector<Difference>& all);

}  // namespace yoke::compare
