// Requests a plan for a run and a ds_config.
#pragma once

#include <string>
#include <vector>

#include "tests/support/mock_model.hpp"
#include "tests/unit/deepspeed_stub/rig.hpp"

namespace yoke::deepspeed_stub::testing {

// A run of `world` ranks in fp32 with a ds_config.
struct PlanRequest {
  explicit PlanRequest(int world = 2, const std::string& json = "") {
    plan.plan.world_size = world;
    plan.plan.param_dtype = plan.plan.reduce_dtype = YOKE_F32;
    plan.optimizer.lr = 3e-3;
    if (!json.empty()) plan.options["config_file"] = json;
  }
  // Makes the plan and returns its refusals and notes as the host prints them; notes start with
  // "note: ".
  std::vector<std::string> ask() {
    YokeError err = yoke::make_error();
    plan.ask(plugin(), summary, &err);
    std::vector<std::string> texts;
    for (const auto& r : plan.refusals) {
      if (r.note && r.allowed.starts_with('#')) {
        comments.push_back(r.key + " = " + r.given + r.allowed);
        continue;
      }
      if (r.note && !r.allowed.empty()) {
        (r.given == "its default" && r.allowed.starts_with("train.clip") ? clip : lines)
            .push_back(r.allowed);
        continue;
      }
      std::string text = (r.note ? "note: " : "") + r.key + " = " + r.given;
      if (!r.allowed.empty()) text += "; allowed: " + r.allowed;
      texts.push_back(text + "; " + r.hint);
    }
    return texts;
  }
  int32_t degree(int axis) const { return plan.plan.degree[axis]; }

  std::vector<std::string> lines;     // lines of a run file that replace the ds_config
  std::vector<std::string> comments;  // "<key> = <given># <text>", for keys that no line replaces
  std::vector<std::string> clip;      // the line of DeepSpeed's default clipping, if it counts
  yoke::testing::MockPlan plan;
  yoke::testing::MockModel model{{YOKE_F32, true}};
  YokeModelSummary summary = model.summary();  // a copy that a test may change
};

inline std::vector<std::string> ask(const std::string& json, int world = 2) {
  return PlanRequest(world, json).ask();
}

}  // namespace yoke::deepspeed_stub::testing
