#include "core/run/trace.hpp"

#include <ATen/Context.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <filesystem>

#include "yoke/text.hpp"

namespace yoke {
namespace {

namespace prof = torch::autograd::profiler;
namespace impl = torch::profiler::impl;

void start_recording() {
  std::set<impl::ActivityType> activities{impl::ActivityType::CPU};
  // False in a run on the CPU, which never loads the CUDA library.
  if (at::hasCUDA()) activities.insert(impl::ActivityType::CUDA);
  const prof::ProfilerConfig config(prof::ProfilerState::KINETO, /*report_input_shapes=*/true);
  prof::prepareProfiler(config, activities);
  prof::enableProfiler(config, activities);
}

}  // namespace

StepTrace::StepTrace(const ProfileConfig& config,
                     const std::string& run_dir,
                     int32_t rank,
                     Log& log)
    : config_(config), folder_(run_dir + "/profile"), rank_(rank), log_(log) {}

StepTrace::~StepTrace() {
  if (!recording_) return;
  step_.reset();
  save();
}

void StepTrace::before(int64_t step) {
  if (!config_.steps) return;
  // A step that was skipped comes again.
  if (step == (*config_.steps)[0] && !recording_) {
    start_recording();
    recording_ = true;
  }
  if (!recording_) return;
  step_.emplace(at::RecordScope::USER_SCOPE);
  step_->before("ProfilerStep#" + std::to_string(step));  // the name that trace viewers look for
}

void StepTrace::after(int64_t step) {
  if (!recording_) return;
  step_.reset();
  if (step == (*config_.steps)[1]) save();
}

void StepTrace::save() {
  recording_ = false;
  const std::string file = folder_ + string_printf("/rank_%03d.json", rank_);
  try {
    std::filesystem::create_directories(folder_);
    prof::disableProfiler()->save(file);
    if (rank_ == 0)
      log_.info("traces are in " + folder_ + "; open them in https://ui.perfetto.dev");
  } catch (const std::exception& e) {
    log_.warning("the trace " + file + " could not be written: " + e.what());
  }
}

}  // namespace yoke
