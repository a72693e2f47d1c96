// A trace of some steps of a rank (profile.steps), by LibTorch's profiler: operators, collectives,
// what the backend names; on a GPU kernels, copies and calls of CUDA too. Opens in
// https://ui.perfetto.dev and chrome://tracing.
#pragma once

#include <ATen/record_function.h>

#include <cstdint>
#include <optional>
#include <string>

#include "core/base/log.hpp"
#include "core/config/run_config.hpp"

namespace yoke {

// One per process, on the thread that trains. While it records, steps are slower.
class StepTrace {
 public:
  // Writes <run_dir>/profile/rank_000.json when the last step has ended, or the run.
  StepTrace(const ProfileConfig& config, const std::string& run_dir, int32_t rank, Log& log);
  ~StepTrace();
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  void before(int64_t step);
  void after(int64_t step);

 private:
  void save();

  const ProfileConfig config_;
  const std::string folder_;
  const int32_t rank_;
  Log& log_;
  bool recording_ = false;
  std::optional<at::RecordFunction> step_;  // the span of the running step
};

}  // namespace yoke
