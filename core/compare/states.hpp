// Two runs' state after the same step, tensor by tensor. Reads the checkpoints of record.states.
// Does not need LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/compare/run_facts.hpp"

namespace yoke::compare {

// How tensor b differs from tensor a.
struct Difference {
  std::string tensor;
  double norm_a = 0, norm_b = 0;
  double relative = 0;  // |b - a| / |a|
  double largest = 0;   // of an element
  double factor = 1;    // the k for which k a is nearest to b
  double residual = 0;  // |b - k a| / |b|: how far b is from being a multiple of a
  double rounded = 1;   // share of the elements, 0 in neither, that differ by at most 2^-7 of them
  int64_t elements = 0;
  int64_t outside = 0;  // of them, those with |b - a| > atol + rtol |a|
};

struct Tolerance {
  double rtol = 0, atol = 0;
};

// Is the state after this step there?
bool has_state(const RunFacts& run, int64_t step);

// Parameters after a step, in the order of the model.
std::vector<Difference> compare_params(const RunFacts& a,
                                       const RunFacts& b,
                                       int64_t step,
                                       const Tolerance& tolerance);

// Gradients as the optimizer took them at a step, after clipping, from its first moment after it
// and, for step > 1, after the step before. Empty if the optimizer keeps no moment.
std::vector<Difference> compare_gradients(const RunFacts& a, const RunFacts& b, int64_t step);

// The norm of all tensors together.
double norm_of_a(const std::vector<Difference>& all);
double norm_of_b(const std::vector<Difference>& all);

}  // namespace yoke::compare
