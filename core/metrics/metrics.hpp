// What a run reports: a line for people, an object per line for programs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace yoke {

// Collectives of one set of axes since the last report.
struct CommUse {
  int64_t calls = 0;
  int64_t bytes = 0;   // payload of this rank, as passed to the operations
  double seconds = 0;  // spent waiting
};

// One logged step. Rates are means over the steps since the last report.
struct StepMetrics {
  int64_t step = 0;
  double loss = 0;       // mean over the targets of the global batch, nats
  double grad_norm = 0;  // before clipping; NaN = not known
  double lr = 0;
  int64_t tokens = 0;  // trained on since the start of the run, all ranks
  double step_seconds = 0;
  double tps = 0;                       // tokens per second, all ranks
  double tflops = 0;                    // per rank; 0 = not known
  std::optional<double> mfu_percent;    // only where the peak of the device is known
  int64_t memory_bytes = 0;             // peak of this rank
  int64_t memory_total_bytes = 0;       // of the device or machine
  double comm_percent = 0;              // of the time, spent waiting for collectives
  std::map<std::string, CommUse> comm;  // by axes, "dp_shard"
};

struct EvalMetrics {
  int64_t step = 0;
  double loss = 0;     // mean over the targets of the held-out tail, nats
  int64_t tokens = 0;  // targets in the mean
  double seconds = 0;
};

// "step: 10  loss: 5.1234  grad_norm: 1.23  lr: 3.0e-04  ...": torchtitan's line and names.
std::string log_line(const StepMetrics& metrics, bool colour);
std::string log_line(const EvalMetrics& metrics, bool colour);
// One JSON object without a newline. Every double can be restored from it bit for bit; what is not
// finite is null.
std::string json_line(const StepMetrics& metrics);
std::string json_line(const EvalMetrics& metrics);

// Whether colours belong on a terminal: NO_COLOR not set, TERM not "dumb".
bool wants_colour();

// metrics.jsonl of a run. One writer; every line is handed to the system at once.
class MetricsFile {
 public:
  // Makes the file, or continues it: whole lines up to last_step stay, later ones belong to steps
  // that will be done again, and go. Throws Error naming the path.
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
