// Requests a plan for a run and an Accelerate config. The inner backend is a mock that records its
// options.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/support/mock_host.hpp"
#include "tests/support/mock_model.hpp"

namespace yoke::accelerate_compat::testing {

struct PlanRequest {
  // A run of `world` ranks in fp32, with a global batch of 8.
  explicit PlanRequest(int world = 2, const std::string& yaml = "");
  PlanRequest(const PlanRequest&) = delete;

  // Makes the plan and returns its refusals and notes as the host prints them; notes start with
  // "note: ". Lines for `yoke config import` are not returned but stored in `lines`.
  std::vector<std::string> ask();

  int32_t degree(int axis) const { return plan.plan.degree[axis]; }

  yoke::testing::MockPlan plan;
  yoke::testing::MockModel model{{YOKE_F32, true}};
  std::vector<std::string> lines;     // "<key> = <given> -> <line>"
  std::vector<std::string> comments;  // "<key> = <given># <text>", about keys without a line

  // The inner backend: its behaviour, and the options that it receives.
  std::map<std::string, std::string> inner_given;  // section [ptd] of the run file
  bool inner_exists = true;
  bool inner_refuses = false;
  bool inner_planned = false;
  std::map<std::string, std::string> inner_options;  // options that it received
};

// Makes a plan for a run of `world` ranks with this config, and returns the messages.
std::vector<std::string> ask(const std::string& yaml, int world = 2);

}  // namespace yoke::accelerate_compat::testing
