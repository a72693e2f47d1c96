// Drawings of the forecast of a step: which rank computes which micro-batch at what time. Does not
// need LibTorch.
#pragma once

#include <string>

#include "core/backend/forecast.hpp"

namespace yoke {

// Returns two lines of text for each rank along pp: what it computes (F forward, R recompute, B
// backward, I and W its two parts; lower case on the second and later stages of a rank) and the
// last digit of the micro-batch, in base 36. A dot is idle time. A step that is wider than
// `columns` is continued below. Requires at least one rank.
std::string text_drawing(const StepForecast& forecast, int columns);

// Returns an SVG document with a row for each rank along pp: a box for each stage and micro-batch
// and, below the boxes, the memory of that rank over the step. Requires at least one rank.
std::string svg_drawing(const StepForecast& forecast, const std::string& title);

}  // namespace yoke
