// Reads the metrics that a run has logged.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/temp_folder.hpp"

namespace yoke::testing {

// Returns the lines of metrics.jsonl in the run folder, in the order in which they were written.
inline std::vector<nlohmann::json> metrics_rows(const std::string& run_dir) {
  std::vector<nlohmann::json> rows;
  std::istringstream lines(read_file(run_dir + "/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) rows.push_back(nlohmann::json::parse(line));
  return rows;
}

// Returns the losses in that order.
inline std::vector<double> logged_losses(const std::string& run_dir) {
  std::vector<double> losses;
  for (const nlohmann::json& row : metrics_rows(run_dir)) losses.push_back(row.at("loss"));
  return losses;
}

// Returns the last loss of each step. A step that was repeated after a restart counts once.
inline std::map<int, double> losses_by_step(const std::string& run_dir) {
  std::map<int, double> losses;
  for (const nlohmann::json& row : metrics_rows(run_dir)) losses[row.at("step")] = row.at("loss");
  return losses;
}

}  // namespace yoke::testing
