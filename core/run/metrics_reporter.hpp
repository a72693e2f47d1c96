// Reports on a run while it trains: log lines, the progress line, metrics.jsonl and TensorBoard's
// event file. Rank 0 writes; the other ranks take part in the collectives.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "core/backend/backend_events.hpp"
#include "core/base/log.hpp"
#include "core/comm/world.hpp"
#include "core/metrics/log_lines.hpp"
#include "core/metrics/tensorboard.hpp"
#include "core/run/checkpointing.hpp"
#include "core/run/job.hpp"
#include "core/run/stage_costs.hpp"
#include "core/run/step_results.hpp"

namespace yoke {

// A training step that was not skipped, for MetricsReporter::step().
struct ReportedStep {
  int64_t step = 0;
  double lr = 0;
  int64_t skipped = 0;                 // number of skipped steps of the run
  const StepResults& results;          // up to this step
  BackendEvents& events;               // metrics that the backend has set
  std::optional<ProductUse> products;  // matrix products of this rank, if they were measured
};

// One per rank, used by the thread that trains.
class MetricsReporter {
 public:
  // On rank 0, opens metrics.jsonl and tensorboard/ in the run folder and logs the table of the
  // run. start: the position from which the run starts or resumes. stages: what costs_of_stages()
  // returned.
  MetricsReporter(const Job& job,
                  const std::string& run_dir,
                  const std::vector<StageCosts>& stages,
                  World& world,
                  Log& log,
                  const Position& start);

  // Returns whether the caller should measure the matrix products of a step: those of a step that
  // is reported, in a run with products in fp8 on the CPU. A recorded step on a device cannot be
  // measured only now and then.
  bool measures_products(int64_t step) const;
  // Call after every step, on every rank, whether it was skipped or not.
  void count_step(int64_t batch_tokens);
  // Call after every step that was not skipped, on every rank. The call is cheap except at steps
  // that are reported: every metrics.every steps, and the last one. There the ranks also compare
  // which collectives they have issued (comm.check). Collective. Throws Error.
  void step(const ReportedStep& done);
  // Call after step(), and after the verification of the step, which can say more about the cause.
  // Throws Error(INTERNAL) if the last report has found that the ranks have had different results,
  // unless comm.check is off or record.facts is set. Collective.
  void require_same_results(const StepResults& results);
  // Reports an evaluation after step `step`. loss: mean over `tokens` targets. begin: when the
  // evaluation started.
  void evaluation(int64_t step,
                  double loss,
                  int64_t tokens,
                  std::chrono::steady_clock::time_point begin);
  // Shows on a terminal that an evaluation has done `done` of `total` batches. Cheap.
  void show_evaluation(int64_t done, int64_t total);
  // Starts a new interval: the time since the last report is left out of the measured speed.
  void restart_interval();
  // Logs the memory that was predicted, and the most that any rank has used. before: what
  // private_bytes() returned before there was a model; it does not matter on a device. Logs nothing
  // if the ranks are threads of one process on the CPU. Call it after at least one step.
  // Collective.
  void report_memory(int64_t before);
  // Logs how often the run has read its data. Then, if there was an evaluation, the tokens are
  // bytes, and all of them count as targets, logs the loss of the last evaluation and the bigram
  // baseline of the same bytes.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  std::string text_of(const StepMetrics& metrics) const;
  std::string text_of(const EvalMetrics& metrics) const;
  template <class Metrics>
  void publish(const Metrics& metrics);
  void report_compute_time();
  void compare_ranks(const StepResults& results, StepMetrics* metrics);
  bool is_reported(int64_t step) const;
  void add_backend_metrics(BackendEvents& events, StepMetrics* metrics);
  std::optional<Straggler> straggler();
  bool progress_is_due();
  void show_progress(int64_t step, const YokeStepResult& result);

  const Job& job_;
  const std::vector<StageCosts> stages_;
  World& world_;
  Log& log_;
  std::unique_ptr<MetricsFile> file_;  // rank 0 only
  std::unique_ptr<EventFile> events_;  // rank 0, if metrics.tensorboard is set
  const LogLines lines_;
  const int64_t first_step_;
  const Clock::time_point begin_;
  Clock::time_point last_progress_;
  double tps_ = 0;  // tokens per second in the last report
  Clock::time_point interval_begin_;
  Clock::time_point step_begin_;
  double step_waited_ = 0;  // seconds in communication since the last reset of the counters
  std::string last_straggler_;
  int32_t warned_about_ = -1;  // rank of the last warning
  bool results_differ_ = false;
  int64_t interval_steps_ = 0;
  int64_t newly_skipped_ = 0;  // skipped steps since the last report
  int64_t interval_tokens_ = 0;
  int64_t tokens_;  // tokens trained on since the start of the run
  std::optional<EvalMetrics> last_evaluation_;
};

}  // namespace yoke
