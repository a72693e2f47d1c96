// The backend's forecast of a training step.
#pragma once

#include "core/backend/forecast.hpp"
#include "core/run/job.hpp"

namespace yoke {

// Asks the backend of a job for the forecast of a training step. Starts no rank. Returns a forecast
// without ranks if the backend reports none. Throws Error(INTERNAL) if the backend refuses the
// plan, or if what it reports contradicts the contract.
StepForecast forecast_of(const Job& job);
// The same for another plan of this job, which is complete and has the same number of ranks.
StepForecast forecast_of(const Job& job, YokePlan plan);

}  // namespace yoke
