// Log lines in the formats of other programs, for those who have programs that read them.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "core/metrics/metrics.hpp"

namespace yoke {

// What the lines of other programs say besides the metrics.
struct LoggedRun {
  int64_t steps = 0;
  int64_t global_batch = 0;  // sequences of a step
  int64_t seq_len = 0;       // tokens of a sequence
  int64_t ranks = 0;
};

// Writes the log lines of one run. Any thread.
class LogLines {
 public:
  // format: "torchtitan", as log_line() in metrics.hpp, "megatron" (Megatron Core 0.16) or
  // "nanotron" (0.4). colour: adds terminal escape sequences to torchtitan's lines.
  LogLines(std::string format, const LoggedRun& run, bool colour)
      : format_(std::move(format)), run_(run), colour_(colour) {}

  // Returns a line without a newline. now: local time, which Megatron prints.
  std::string of(const StepMetrics& metrics, std::chrono::system_clock::time_point now) const;
  // nanotron has no line about an evaluation, so its format has torchtitan's.
  std::string of(const EvalMetrics& metrics) const;

 private:
  std::string megatron(const StepMetrics& m, std::chrono::system_clock::time_point now) const;
  std::string nanotron(const StepMetrics& m) const;

  const std::string format_;
  const LoggedRun run_;
  const bool colour_;
};

}  // namespace yoke
