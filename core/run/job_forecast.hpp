// The backend's forecast of a training step.
#pragma once

#include "core/backend/forecast.hpp"
#include "core/run/job.hpp"

namespace yoke {

// Asks the backend of a job for the forecast of a training step. Starts no rank. Returns a forecast
// without ranks if the backend reports none. Throws Error(INTERNAL) if the backend refuses the
// plan, or if what it reports contradicts the contract.
StepForecast forecast_of(const Job& job);
// The same with another plan, which is complete and has the same number of ranks, and with other
// values of the backend's options.
StepForecast forecast_of(const Job& job, YokePlan plan, const OptionList& options);

}  // namespace yoke
