// Records a trace of some steps of a rank (profile.steps) with LibTorch's profiler: operators,
// collectives, ranges that the backend names, and on a GPU also kernels, copies and CUDA calls. The
// trace opens in https://ui.perfetto.dev and chrome://tracing.
#pragma once

#include <ATen/record_function.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/backend/backend_events.hpp"
#include "core/base/log.hpp"
#include "core/config/run_config.hpp"

namespace yoke {

// One per process, used by the thread that trains. Traced steps are slower. If a trace cannot be
// written, a warning is logged and the run continues.
class StepTrace {
 public:
  // Writes <run_dir>/profile/rank_000.json after the last traced step, or in the destructor if the
  // run ends before that. events: its spans are added to the trace.
  StepTrace(const ProfileConfig& config,
            const std::string& run_dir,
            int32_t rank,
            Log& log,
            BackendEvents& events);
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
  BackendEvents& events_;
  std::vector<BackendEvents::Span> spans_;  // spans of the steps that are recorded
  bool recording_ = false;
  std::optional<at::RecordFunction> step_;  // range of the current step
};

}  // namespace yoke
