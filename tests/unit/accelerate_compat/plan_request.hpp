// What plan makes of a run and an Accelerate config, in front of an inner backend that only takes
// notes.
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

  // Everything that plan says, as the host prints it; notes begin with "note: ". Translations for
  // `yoke config import` are left out, and kept in `lines`.
  std::vector<std::string> ask();

  int32_t degree(int axis) const { return plan.plan.degree[axis]; }

  yoke::testing::MockPlan plan;
  yoke::testing::MockModel model{{YOKE_F32, true}};
  std::vector<std::string> lines;  // "<key> = <given> -> <line>"

  // The inner backend's side.
  std::map<std::string, std::string> inner_given;  // [ptd] of the run file
  bool inner_exists = true;
  bool inner_refuses = false;
  bool inner_planned = false;
  std::map<std::string, std::string> inner_options;  // what it was told
};

// The answer to a config, in a world of two.
std::vector<std::string> ask(const std::string& yaml, int world = 2);

}  // namespace yoke::accelerate_compat::testing
