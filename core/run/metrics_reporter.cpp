#include "core/run/metrics_reporter.hpp"

#include <unistd.h>

#include <algorithm>
#include <sstream>

#include "core/base/text.hpp"
#include "core/control/hub_state.hpp"
#include "core/control/member.hpp"
#include "core/cuda/rank_device.hpp"
#include "core/metrics/bigram.hpp"
#include "core/metrics/memory.hpp"
#include "core/metrics/progress.hpp"
#include "core/run/run_table.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr std::chrono::milliseconds kProgressEvery{200};  // between progress lines

// Returns the bytes of `count` windows, each with the one that follows it.
BytePairs pairs_of(const DataSet& data, int64_t first_window, int64_t count) {
  BytePairs pairs;
  std::vector<int64_t> ids(data.seq_len + 1);
  for (int64_t w = first_window; w < first_window + count; ++w) {
    read_window(data, w, 0, data.seq_len + 1, ids.data());
    pairs.add(ids);
  }
  return pairs;
}

}  // namespace

MetricsReporter::MetricsReporter(const Job& job,
                                 const std::string& run_dir,
                                 const std::vector<StageCosts>& stages,
                                 World& world,
                                 Log& log,
                                 const Position& start)
    : job_(job),
      stages_(stages),
      world_(world),
      log_(log),
      lines_(job.config.run.metrics.line,
             {job.config.run.train.steps,
              job.plan->plan().global_batch,
              job.data.seq_len,
              world.size()},
             wants_colour() && (log.shows_progress() || ::isatty(STDOUT_FILENO) == 1)),
      first_step_(start.step),
      begin_(Clock::now()),
      tokens_(start.next_sample * job.data.seq_len) {
  if (world.rank() == 0) {
    file_ = std::make_unique<MetricsFile>(run_dir + "/metrics.jsonl", start.step);
    if (job.config.run.metrics.tensorboard)
      events_ = std::make_unique<EventFile>(run_dir + "/tensorboard", start.step);
    for (const std::string& line : run_table(job, stages, run_dir, start.step)) log_.info(line);
    for (const std::string& note : job.notes) log_.info("note: " + note);
  }
  restart_interval();
}

void MetricsReporter::restart_interval() {
  interval_begin_ = Clock::now();
  interval_steps_ = 0;
  interval_tokens_ = 0;
  world_.reset_counts();
  step_begin_ = Clock::now();
  step_waited_ = 0;
}

void MetricsReporter::count_step(int64_t batch_tokens) {
  report_compute_time();
  ++interval_steps_;
  ++newly_skipped_;
  interval_tokens_ += batch_tokens;
  tokens_ += batch_tokens;
}

// Makes the memory that of the rank that has used most, and the numbers of products those of all
// ranks. The exchange also shows whether the ranks have had the same results: the host decides by
// them what to do next, so ranks with different results would drift apart.
void MetricsReporter::compare_ranks(const StepResults& results, StepMetrics* metrics) {
  const auto hash = static_cast<int64_t>(results.hash());
  const ProductUse own = metrics->products.value_or(ProductUse{});
  ProductUse all;
  bool equal = true;
  for (const std::vector<int64_t>& theirs : world_.check_collectives(
           {metrics->memory_bytes, hash, own.rounded, own.largest, own.zeroed})) {
    metrics->memory_bytes = std::max(metrics->memory_bytes, theirs[0]);
    equal = equal && theirs[1] == hash;
    all.rounded += theirs[2];
    all.largest += theirs[3];
    all.zeroed += theirs[4];
  }
  results_differ_ = !equal;
  if (!metrics->products) return;
  metrics->products->rounded = all.rounded;
  metrics->products->largest = all.largest;
  metrics->products->zeroed = all.zeroed;
}

bool MetricsReporter::is_reported(int64_t step) const {
  const RunConfig& run = job_.config.run;
  return step % run.metrics.every == 0 || step == run.train.steps;
}

bool MetricsReporter::measures_products(int64_t step) const {
  return job_.config.run.precision.product == "fp8" && !job_.on_cuda && is_reported(step);
}

void MetricsReporter::require_same_results(const StepResults& results) {
  // All ranks have compared the same hashes, so all take the same branch.
  const RunConfig& run = job_.config.run;
  if (!results_differ_ || run.record.facts || run.comm.check == "off") return;
  throw_difference(world_.gather_texts(results.text()));
}

void MetricsReporter::add_backend_metrics(BackendEvents& events, StepMetrics* metrics) {
  for (const auto& [name, value] : events.take_metrics())
    metrics->backend[job_.backend.name() + "." + name] = value;
  if (const int64_t dropped = events.take_dropped(); dropped > 0)
    log_.warning(concat(job_.backend.name(), ": ", dropped, " spans or metrics of rank ") +
                 concat(world_.rank(), " were dropped; allowed: ", BackendEvents::kMaxSpans) +
                 concat(" spans in a step and ", BackendEvents::kMaxMetrics, " metrics"));
}

void MetricsReporter::step(const ReportedStep& done) {
  const int64_t step = done.step;
  const YokeStepResult& result = done.results.last();
  --newly_skipped_;
  show_progress(step, result);
  if (!is_reported(step)) return;

  StepMetrics m;
  const RankDevice* device = world_.device();
  const DeviceMemory memory = device != nullptr ? device->memory() : DeviceMemory{};
  m.memory_bytes = device != nullptr ? memory.peak_bytes : peak_resident_bytes();
  m.products = done.products;
  compare_ranks(done.results, &m);
  m.memory_total_bytes = device != nullptr ? memory.total_bytes : total_memory_bytes();
  const double seconds = std::chrono::duration<double>(Clock::now() - interval_begin_).count();
  m.step = step;
  m.loss = result.loss_sum / result.loss_weight;
  m.grad_norm = result.grad_norm;
  m.lr = done.lr;
  if (result.loss_scale > 0) m.loss_scale = result.loss_scale;
  m.skipped = done.skipped;
  m.newly_skipped = newly_skipped_;
  m.tokens = tokens_;
  const DataSet& data = job_.data;
  m.epoch =
      static_cast<double>(tokens_) / static_cast<double>(data.train.num_windows() * data.seq_len);
  m.step_seconds = seconds / static_cast<double>(interval_steps_);
  m.tps = static_cast<double>(interval_tokens_) / seconds;
  m.tflops = m.tps * job_.model.flops_per_token / world_.size() / 1e12;
  const std::string stages = axes_name(YOKE_AXIS_BIT(YOKE_PP));
  // Waits on a device are not seen by the host.
  const bool pipeline = job_.plan->plan().degree[YOKE_PP] > 1 && !job_.on_cuda;
  if (pipeline) m.bubble_percent = 0;
  for (const auto& [axes, count] : world_.counts()) {
    m.comm[axes] = {count.calls, count.bytes, count.seconds};
    (pipeline && axes == stages ? *m.bubble_percent : m.comm_percent) +=
        100 * count.seconds / seconds;
  }
  tps_ = m.tps;
  m.straggler = straggler();
  add_backend_metrics(done.events, &m);
  publish(m);
  newly_skipped_ = 0;
  restart_interval();
}

// What this rank computed is the time of the step without the waits in collectives. On a device the
// waits are not known, because the host does not take part in them.
void MetricsReporter::report_compute_time() {
  const Clock::time_point now = Clock::now();
  double waited = 0;
  for (const auto& [axes, count] : world_.counts()) waited += count.seconds;
  const double in_step = waited - step_waited_;
  if (Member* member = world_.member(); member != nullptr && world_.device() == nullptr)
    member->add_computed(std::chrono::duration<double>(now - step_begin_).count() - in_step);
  step_begin_ = now;
  step_waited_ = waited;
}

// Returns the rank that slows the others down, if the hub has found one since the last report, and
// warns the user once for each such rank.
std::optional<Straggler> MetricsReporter::straggler() {
  if (world_.member() == nullptr) return std::nullopt;
  const std::optional<std::string> note = world_.member()->peek(kStragglerNote);
  if (!note || *note == last_straggler_) return std::nullopt;
  last_straggler_ = *note;
  Straggler slow;
  std::istringstream(*note) >> slow.rank >> slow.factor >> slow.since;
  slow.host = world_.member()->peers().at(static_cast<size_t>(slow.rank)).host;
  if (warned_about_ != slow.rank) {
    warned_about_ = slow.rank;
    log_.warning(concat("rank ", slow.rank, " (", slow.host, ") is slow: since step ", slow.since) +
                 string_printf(" it computes %.1f times as long as the median rank", slow.factor) +
                 (job_.plan->plan().degree[YOKE_PP] > 1 ? " of its pipeline stage" : "") +
                 ", and all others wait for it");
  }
  return slow;
}

std::string MetricsReporter::text_of(const StepMetrics& metrics) const {
  return lines_.of(metrics, std::chrono::system_clock::now());
}
std::string MetricsReporter::text_of(const EvalMetrics& metrics) const {
  return lines_.of(metrics);
}

template <class Metrics>
void MetricsReporter::publish(const Metrics& metrics) {
  if (!file_) return;
  log_.info(text_of(metrics));
  file_->write(metrics);
  if (events_) events_->write(metrics.step, scalars(metrics));
}

// Returns whether a progress line should be shown now. It is shown rarely enough not to cost time.
bool MetricsReporter::progress_is_due() {
  const Clock::time_point now = Clock::now();
  if (!log_.shows_progress() || now - last_progress_ < kProgressEvery) return false;
  last_progress_ = now;
  return true;
}

void MetricsReporter::show_evaluation(int64_t done, int64_t total) {
  if (done == 0 || progress_is_due())
    log_.progress(concat("evaluating ", done, "/", total, " ", progress_bar(done, total)));
}

void MetricsReporter::show_progress(int64_t step, const YokeStepResult& result) {
  if (!progress_is_due()) return;
  Progress p;
  p.first = first_step_;
  p.step = step;
  p.steps = job_.config.run.train.steps;
  p.loss = result.loss_sum / result.loss_weight;
  p.tps = tps_;
  p.seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
  log_.progress(progress_line(p));
}

void MetricsReporter::evaluation(int64_t step,
                                 double loss,
                                 int64_t tokens,
                                 Clock::time_point begin) {
  EvalMetrics m;
  m.step = step;
  m.loss = loss;
  m.tokens = tokens;
  m.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  last_evaluation_ = m;
  publish(m);
  restart_interval();
}

// LibTorch counts the bytes of tensors only on devices. On the CPU, the growth of the process
// stands for them. Files, which training data and libraries are, and the memory through which ranks
// exchange tensors do not count; they hardly shrink, so their size now is that at the peak.
void MetricsReporter::report_memory(int64_t before) {
  const RankDevice* device = world_.device();
  if (device == nullptr && world_.in_threads()) return;
  const int64_t own = device != nullptr
                          ? device->memory().peak_bytes
                          : peak_resident_bytes() - (resident_bytes() - private_bytes()) - before;
  int64_t most = 0;
  for (const std::vector<int64_t>& theirs : world_.check_collectives({own}))
    most = std::max(most, theirs[0]);
  if (world_.rank() == 0) log_.info(used_memory_text(stages_, most, device != nullptr));
}

void MetricsReporter::finish() {
  if (!file_) return;
  log_.info(trained_text(job_, tokens_ / job_.data.seq_len));
  const bool bytes = job_.data.has_tokens() && job_.data.sources[0].stream->vocab() == 256;
  // The baseline is a mean over all bytes of the windows that were evaluated.
  if (!last_evaluation_ || !bytes || !every_target_counts(job_.data)) return;
  const int64_t train = job_.data.train.num_windows(), tokens = last_evaluation_->tokens;
  constexpr double kSmoothing = 0.1;
  // This much text is enough for the counts; reading more would keep the other ranks waiting.
  constexpr int64_t kMostBytes = 1 << 28;
  const int64_t read = std::min(train, kMostBytes / job_.data.seq_len + 1);
  const double baseline = bigram_loss(pairs_of(job_.data, 0, read),
                                      pairs_of(job_.data, train, tokens / job_.data.seq_len),
                                      kSmoothing);
  log_.info(string_printf("held-out loss: %.4f nats/byte, bigram baseline: %.4f, both over ",
                          last_evaluation_->loss,
                          baseline) +
            with_commas(static_cast<double>(tokens)) + " bytes");
}

}  // namespace yoke
