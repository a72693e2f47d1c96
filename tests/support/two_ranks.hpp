// A forecast for tests.
#pragma once

#include "core/backend/forecast.hpp"

namespace yoke::testing {

// Returns the step of two ranks with a block each and one micro-batch. Rank 0 runs forward from 0
// to 1, sends, waits until 2, and runs the two parts of its backward until 3 and 5. Rank 1, whose
// activations are unknown, runs forward from 1 to 2 and backward from 2 to 3.
inline StepForecast two_ranks() {
  const auto action = [](const char* name, int32_t kind, double begin, double end, int64_t bytes) {
    return ForecastAction{.name = name,
                          .kind = kind,
                          .block = 0,
                          .micro = 0,
                          .begin = begin,
                          .end = end,
                          .activation_bytes = bytes};
  };
  StepForecast forecast;
  RankForecast first;
  first.stages = {{0, 1}};
  first.param_bytes = 100;
  first.actions = {action("Forward", YOKE_FORECAST_FORWARD, 0, 1, 20),
                   action("SendCarry", YOKE_FORECAST_OTHER, 1, 1, 30),
                   action("WaitCarryGrad", YOKE_FORECAST_OTHER, 1, 2, 30),
                   action("BackwardInput", YOKE_FORECAST_BACKWARD_INPUT, 2, 3, 10),
                   action("BackwardWeight", YOKE_FORECAST_BACKWARD_WEIGHT, 3, 5, 0)};
  first.actions[1].axis = YOKE_PP;
  first.actions[1].payload_bytes = 8;
  RankForecast second = first;
  second.stages = {{1, 1}};
  second.actions = {action("Forward", YOKE_FORECAST_FORWARD, 1, 2, -1),
                    action("Backward", YOKE_FORECAST_BACKWARD, 2, 3, -1)};
  for (ForecastAction& a : second.actions) a.block = 1;
  forecast.ranks = {first, second};
  return forecast;
}

}  // namespace yoke::testing
