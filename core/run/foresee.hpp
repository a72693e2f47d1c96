// What the backend foresees of a step, before a rank exists.
#pragma once

#include "core/backend/forecast.hpp"
#include "core/run/job.hpp"

namespace yoke {

// Asks the backend of a job what a training step will take. Returns a forecast without ranks if the
// backend does not say. Throws Error(INTERNAL) if what it says contradicts the contract.
StepForecast foresee(const Job& job);

}  // namespace yoke
