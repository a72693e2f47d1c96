#include "core/run/trace.hpp"

#include <ATen/Context.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "yoke/error.hpp"
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

// Adds the backend's spans to a trace file. LibTorch's profiler takes ranges only while they run,
// on their own thread, but a backend reports a span when it has ended.
void add_spans(const std::string& file, const std::vector<BackendEvents::Span>& spans) {
  constexpr double kNanosecondsPerUnit = 1e3;  // the file counts in microseconds
  nlohmann::json trace = nlohmann::json::parse(std::ifstream(file));
  const auto base = trace.value("baseTimeNanoseconds", int64_t{0});
  for (const BackendEvents::Span& span : spans) {
    trace["traceEvents"].push_back(
        {{"ph", "X"},
         {"cat", "backend"},
         {"name", span.name},
         {"pid", ::getpid()},
         {"tid", span.thread},
         {"ts", static_cast<double>(span.begin - base) / kNanosecondsPerUnit},
         {"dur", static_cast<double>(span.end - span.begin) / kNanosecondsPerUnit}});
  }
  std::ofstream out(file);
  out << trace.dump();
  if (!out.flush()) throw Error(YOKE_RESOURCE_EXHAUSTED, "it could not be written");
}

}  // namespace

StepTrace::StepTrace(const ProfileConfig& config,
                     const std::string& run_dir,
                     int32_t rank,
                     Log& log,
                     BackendEvents& events)
    : config_(config), folder_(run_dir + "/profile"), rank_(rank), log_(log), events_(events) {}

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
    events_.record(true);
    recording_ = true;
  }
  if (!recording_) return;
  step_.emplace(at::RecordScope::USER_SCOPE);
  step_->before("ProfilerStep#" + std::to_string(step));  // the name that trace viewers look for
}

void StepTrace::after(int64_t step) {
  if (!recording_) return;
  step_.reset();
  for (BackendEvents::Span& span : events_.take_spans()) spans_.push_back(std::move(span));
  if (step == (*config_.steps)[1]) save();
}

void StepTrace::save() {
  recording_ = false;
  events_.record(false);
  const std::string file = folder_ + string_printf("/rank_%03d.json", rank_);
  try {
    std::filesystem::create_directories(folder_);
    prof::disableProfiler()->save(file);
    if (!spans_.empty()) add_spans(file, spans_);
    if (rank_ == 0)
      log_.info("traces are in " + folder_ +
                "; open them in https://ui.perfetto.dev, or join them with `yoke trace`");
  } catch (const std::exception& e) {
    log_.warning("the trace " + file + " could not be written: " + e.what());
  }
}

}  // namespace yoke
