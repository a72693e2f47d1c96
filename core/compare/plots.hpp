// The plots of a report, as inline SVG. Does not need LibTorch.
#pragma once

#include <string>
#include <vector>

#include "core/compare/comparison.hpp"

namespace yoke::compare {

// Returns the cases that ran, followed by the reference, if it ran.
std::vector<const CaseResult*> all_runs(const Comparison& comparison);

// Each returns a plot of this width, or two below each other; "" if there is nothing to draw.
// Losses of the reference and of the cases that did not pass.
std::string loss_plot(const Comparison& comparison, double width);
// Relative differences of losses and gradient norms from the reference.
std::string difference_plots(const Comparison& comparison, double width);
// Distribution of the times of all steps of all repeats; medians of repeats alone would hide slow
// steps.
std::string time_plot(const Comparison& comparison, double width);
// Median time of a step against the peak memory of a rank; the cases that the answer says to take
// have a ring. If numbers of ranks differ, each has a colour.
std::string speed_memory_plot(const Comparison& comparison, double width);
// Peak memory of a rank, from the least to the most. What the backend does not declare, such as
// unknown activations and the memory of the process itself, is hatched, so that a bar always ends
// at the measured peak.
std::string memory_plot(const Comparison& comparison, double width);

}  // namespace yoke::compare
