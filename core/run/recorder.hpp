// What rank 0 tells about a run while it goes on: the log line, the progress line, metrics.jsonl,
// TensorBoard's event file, the closing words.
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "core/base/log.hpp"
#include "core/comm/world.hpp"
#include "core/metrics/metrics.hpp"
#include "core/metrics/tensorboard.hpp"
#include "core/run/checkpointing.hpp"
#include "core/run/job.hpp"

namespace yoke {

class Recorder {
 public:
  // Writes to metrics.jsonl and tensorboard/ of the run folder on rank 0. `at`: where the run
  // starts or goes on.
  Recorder(const Job& job,
           const std::string& run_dir,
           const YokeWrapResult& costs,
           World& world,
           Log& log,
           const Position& at);

  // After every step, on every rank; cheap unless the step is reported (metrics.every, and the last
  // one): then the ranks also compare which collectives they have issued (comm.check). Collective.
  void step(int64_t step, const YokeStepResult& result, double lr, int64_t batch_tokens);
  // After an evaluation that began at `begin`.
  void evaluation(int64_t step,
                  double loss,
                  int64_t tokens,
                  std::chrono::steady_clock::time_point begin);
  // What was between the last step and now is no part of the speed of steps.
  void restart_interval();
  // Held-out loss beside the bigram baseline, if there was an evaluation and the data are bytes.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  template <class Metrics>
  void publish(const Metrics& metrics);
  void show_progress(int64_t step, const YokeStepResult& result);

  const Job& job_;
  World& world_;
  Log& log_;
  std::unique_ptr<MetricsFile> file_;  // rank 0
  std::unique_ptr<EventFile> events_;  // rank 0, if wanted
  const bool colour_;
  const int64_t first_step_;
  const Clock::time_point begin_;
  Clock::time_point last_progress_;
  double tps_ = 0;  // of the last report
  Clock::time_point interval_begin_;
  int64_t interval_steps_ = 0;
  int64_t interval_tokens_ = 0;
  int64_t tokens_;  // since the start of the run
  std::optional<double> held_out_loss_;
};

}  // namespace yoke
