// The metrics that a run reports, as lines of text for people and as lines of JSON for programs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace yoke {

// CommUse counts the collectives along one set of axes since the last report.
struct CommUse {
  int64_t calls = 0;
  int64_t bytes = 0;   // payload of this rank, as passed to the operations
  double seconds = 0;  // time spent waiting for them
};

// Straggler names a rank that slows the others down.
struct Straggler {
  int32_t rank = 0;
  std::string host;
  double factor = 1;  // its computing time per step over the median of its pipeline stage
  int64_t since = 0;  // step
};

// ProductUse describes the matrix products of a step in a run with products in fp8.
struct ProductUse {
  // Shares of the time of rank 0 that products take, without rounding, and that rounding to fp8
  // takes.
  double percent = 0, rounding_percent = 0;
  // Numbers that all ranks have rounded to fp8, those that became the largest number of their
  // format in absolute value, and those that became zero, but were not. 0 = unknown.
  int64_t rounded = 0, largest = 0, zeroed = 0;
  // Return the shares of the last two among all that were rounded, in percent.
  double largest_percent() const { return share(largest); }
  double zeroed_percent() const { return share(zeroed); }

 private:
  double share(int64_t part) const {
    return 100 * static_cast<double>(part) / static_cast<double>(rounded);
  }
};

// StepMetrics describes one logged step. Rates are means over the steps since the last report.
struct StepMetrics {
  int64_t step = 0;
  double loss = 0;       // mean over the targets of the global batch, nats
  double grad_norm = 0;  // norm before clipping; NaN = unknown
  double lr = 0;
  std::optional<double> loss_scale;  // factor of the loss in this step; set in fp16 runs
  int64_t skipped = 0;               // steps of the run that updated nothing
  int64_t newly_skipped = 0;         // those of them since the last report
  int64_t tokens = 0;                // tokens trained on since the start of the run, by all ranks
  double epoch = 0;                  // number of times that the training data has been read
  double step_seconds = 0;
  double tps = 0;                     // tokens per second, all ranks together
  double tflops = 0;                  // TFLOP per second of one rank; 0 = unknown
  std::optional<double> mfu_percent;  // set if the peak speed of the device is known
  int64_t memory_bytes = 0;           // peak memory of the rank with the highest peak
  int64_t memory_total_bytes = 0;     // memory of rank 0's device or machine
  double comm_percent = 0;            // share of the time spent waiting for collectives
  // Share of the time spent waiting for other stages of a pipeline, which comm_percent leaves out.
  std::optional<double> bubble_percent;
  std::optional<ProductUse> products;     // set in an fp8 run on the CPU
  std::map<std::string, CommUse> comm;    // use of each set of axes, such as "dp_shard"
  std::optional<Straggler> straggler;     // set if one has been found since the last report
  std::map<std::string, double> backend;  // metrics of the backend: "diloco.drift"
};

// EvalMetrics describes one evaluation.
struct EvalMetrics {
  int64_t step = 0;
  double loss = 0;     // mean over the targets of the evaluation data, nats
  int64_t tokens = 0;  // number of targets in the mean
  double seconds = 0;
};

// Return the line for people: "step: 10  loss: 5.1234  grad_norm: 1.23  lr: 3.0e-04  ...". The
// format and the names are torchtitan's. `colour` adds terminal escape sequences.
std::string log_line(const StepMetrics& metrics, bool colour);
std::string log_line(const EvalMetrics& metrics, bool colour);
// Return one JSON object without a newline. Every double can be restored from it bit for bit; NaN
// and infinity are written as null.
std::string json_line(const StepMetrics& metrics);
std::string json_line(const EvalMetrics& metrics);

// Returns true if the user wants colours on a terminal: NO_COLOR is not set and TERM is not "dumb".
bool wants_colour();

// MetricsFile writes metrics.jsonl of a run. One thread of one rank may use it. Every line is
// passed to the operating system immediately, so a program that follows the file, or reads it after
// a crash, finds all of them.
class MetricsFile {
 public:
  // Creates the file, or continues it after `last_step`: complete lines up to that step are kept,
  // and later ones are removed, because their steps will be trained again. Throws Error with the
  // path.
  MetricsFile(const std::string& path, int64_t last_step);
  ~MetricsFile();
  void write(const StepMetrics& metrics);
  void write(const EvalMetrics& metrics);

 private:
  void write_line(std::string line);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace yoke
