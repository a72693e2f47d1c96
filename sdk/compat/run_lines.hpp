// The lines of a run file that mean the same as a config of another program, and their comparison
// with a run.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sdk/compat/foreign_config.hpp"

namespace yoke::compat {

// A line `key = value` of a run file, and the setting that it translates. The value is written as
// in TOML.
struct RunLine {
  std::string setting, key, value;
};

// Return values as TOML writes them.
std::string quoted(std::string_view text);
const char* boolean_text(bool value);
std::string pair_text(double a, double b);

// Collects the lines of a config, and what cannot be translated as refusals. Both arguments must
// outlive it.
class RunLines {
 public:
  RunLines(const ForeignConfig& config, PlanMessages& messages)
      : config_(config), messages_(messages) {}

  void add(std::string_view setting, std::string_view key, std::string value);
  // Add the value of a setting, or its default. Nothing is added if it has neither.
  void integer(std::string_view setting, std::string_view key);
  void number(std::string_view setting, std::string_view key);
  // Adds train.betas from two settings, or refuses the one that is out of range.
  void betas(std::string_view first, std::string_view second);
  void refuse(std::string_view setting, std::string_view allowed, std::string_view hint);
  void note(std::string_view setting, std::string_view hint);

  const std::vector<RunLine>& lines() const { return lines_; }

 private:
  const ForeignConfig& config_;
  PlanMessages& messages_;
  std::vector<RunLine> lines_;
};

// Compares the lines with what `plan` has to know: the model, the batch, the optimizer and the
// precision. A line that differs from the run is refused. The host compares the rest. Sets
// plan.micro_batch if it is unset.
void check_lines(const ForeignConfig& config,
                 const std::vector<RunLine>& lines,
                 const YokeModelSummary& model,
                 YokePlan& plan,
                 PlanMessages& messages);

}  // namespace yoke::compat
