// The forecast of a training step (YokeForecast in the contract) in the host's types. The worker
// collects it from the backend, and `yoke plan` prints it. Does not need LibTorch.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "yoke/parallel_backend.h"

namespace yoke {

// As YokeForecastAction.
struct ForecastAction {
  std::string name;
  int32_t kind = YOKE_FORECAST_OTHER;
  int32_t block = -1;
  int32_t micro = -1;
  int32_t axis = -1;
  int64_t payload_bytes = 0;
  double begin = 0, end = 0;
  int64_t unsharded_bytes = 0, activation_bytes = 0, temporary_bytes = 0;

  bool computes() const { return kind != YOKE_FORECAST_OTHER; }
  double duration() const { return end - begin; }
  // Returns the bytes that exist only during a step, at the peak of the action; -1 = unknown.
  // Temporary memory that is unknown is left out.
  int64_t step_bytes() const;
};

// A range of consecutive blocks.
struct BlockRange {
  int64_t first = 0, count = 0;
};

// The step of the ranks with one coordinate along pp.
struct RankForecast {
  std::vector<BlockRange> stages{};
  int64_t param_bytes = 0, grad_bytes = 0, optimizer_bytes = 0;  // -1 = unknown
  std::vector<ForecastAction> actions{};

  // Returns the time in which a rank computes.
  double busy() const;
  // Returns the index of the action at which a rank needs the most memory. There is at least one
  // action.
  size_t peak() const;
  // Returns the peak memory of a rank during an action, in bytes; -1 = unknown. Temporary memory
  // counts only where it is known.
  int64_t bytes_at(size_t action) const;
};

// The step of all ranks. The member functions require at least one rank.
struct StepForecast {
  std::vector<RankForecast> ranks;  // forecasts in the order of their coordinates along pp

  double end() const;  // time at which the last rank has finished
  // Returns the share of the ranks' time in which they compute nothing, from 0 to 1.
  double bubble() const;
  // Returns how much a rank computes, compared with the mean of all ranks.
  double load(size_t rank) const;
  // Returns the peak memory of the rank that needs the most, in bytes; -1 = unknown.
  int64_t peak_bytes() const;
  // Returns true if a total of RankForecast::bytes_at() is known, but lacks temporary memory.
  bool lacks_temporary() const;
};

// Collects what a backend reports during plan. Link `service` into the extensions of its arguments.
class ForecastCollector {
 public:
  // next: further extensions; may be NULL.
  explicit ForecastCollector(const YokeHeader* next);
  ForecastCollector(const ForecastCollector&) = delete;
  ForecastCollector& operator=(const ForecastCollector&) = delete;

  const YokeHeader* extension() const { return &service_.header; }
  // Returns what was reported; it has no ranks if the backend reports no forecast. Throws
  // Error(INTERNAL) if that contradicts the contract: coordinates that are not 0, 1, 2 ..., blocks
  // or times that cannot be. plan, model: as passed to the backend.
  StepForecast result(const YokePlan& plan, const YokeModelSummary& model) const;

 private:
  static void add(void* ctx, const YokeForecast* forecast);
  void collect(const YokeForecast& forecast);

  YokeForecasts service_;
  std::vector<int32_t> coordinates_;
  StepForecast forecast_;
};

nlohmann::ordered_json to_json(const StepForecast& forecast);
// Reads what to_json() has written. Throws nlohmann::json::exception or Error(INVALID_ARGUMENT).
StepForecast forecast_from_json(const nlohmann::ordered_json& json);

}  // namespace yoke
