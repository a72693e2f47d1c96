// Records a trace of some steps of a rank (profile.steps) with LibTorch's profiler: operators,
// collectives, ranges that the backend names, and on a GPU also kernels, copies and CUDA calls. The
// trace opens in https://ui.perfetto.dev and chrome://tracing.
#pragma once

#include <ATen/record_function.h>

#include <cstdint>
#include <optional>
#include <string>

#include "core/base/log.hpp"
#include "core/config/run_config.hpp"

namespace yoke {

// One per process, used by the thread that trains. Traced steps are slower. If a
// trace cannot be written, a warning is logged and the run continues.
class StepTrace {
 public:
  // Writes <run_dir>/profile/rank_000.json after the last traced step, or in the destructor if the
  // run ends before that.
  StepTrace(const ProfileConfig& config, const std::string& run_dir, int32_t rank, Log& log);
  ~StepTrace();
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  // Call before and after every step.
  void before(int64_t step);
  void after(int64_t step);

 private:
  void save();

  const ProfileConfig config_;
  const std::string folder_;
  const int32_t rank_;
  Log& log_;
  bool recording_ = false;
  std::optional<at::RecordFunction> step_;  // range of the current step
};

}  // namespace yoke
