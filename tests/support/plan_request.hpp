// Requests a plan for a run of a Llama and a config of another program, without LibTorch.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/support/llama_summary.hpp"
#include "tests/support/mock_host.hpp"
#include "yoke/backend.hpp"

namespace yoke::testing {

// A backend that makes plans like a plugin, but lacks its LibTorch part.
template <auto option_infos, auto complete_plan>
class PlanOnly : public Backend {
 public:
  const YokeDescription& describe() const override {
    static const YokeDescription description = [] {
      YokeDescription d{};
      d.header = YOKE_HEADER(YokeDescription, YOKE_ID_DESCRIPTION);
      d.name = view("plan_only");
      set_options(d, option_infos());
      return d;
    }();
    return description;
  }
  void plan(const YokePlanArgs& args, YokePlan& plan, PlanReport& report) const override {
    complete_plan(args, plan, report);
  }
  std::unique_ptr<Context> init(const YokeInitArgs&) const override {
    throw Error(YOKE_UNIMPLEMENTED, "not here");
  }
};

// A run of two ranks with a global batch of 8 and AdamW, in fp32.
template <class PlanBackend>
struct PlanOfLlama {
  Dims dims;
  std::map<std::string, std::string> options;  // options of the run file
  MockPlan plan;
  std::vector<std::string> lines;  // lines of a run file, "key = value"

  PlanOfLlama() {
    plan.plan.world_size = 2;
    for (int32_t& degree : plan.plan.degree) degree = 0;
    plan.plan.global_batch = 8;
    plan.plan.micro_batch = 0;
    plan.plan.param_dtype = YOKE_F32;
    plan.plan.reduce_dtype = 0;
    plan.optimizer.kind = YOKE_ADAMW;
    plan.optimizer.beta1 = 0.9;
    plan.optimizer.beta2 = 0.95;
    plan.optimizer.eps = 1e-8;
    plan.optimizer.momentum = 0;
    plan.optimizer.weight_decay = 0.1;
    plan.optimizer.clip = 1;
    plan.optimizer.lr = 1e-3;
  }
  PlanOfLlama(const PlanOfLlama&) = delete;

  // Makes the plan and returns its refusals and notes; notes start with "note: ". option: that of
  // the file; text: its content, "" = no file.
  std::vector<std::string> ask(const std::string& option, const std::string& text) {
    plan.options = options;
    if (!text.empty()) plan.options[option] = text;
    const LlamaSummary summary(dims);
    YokeError err = make_error();
    plan.refusals.clear();
    plan.ask(detail::Table<PlanBackend>::kTable, summary.get(), &err);
    std::vector<std::string> texts;
    lines.clear();
    for (const auto& r : plan.refusals) {
      if (r.note && !r.allowed.empty()) {
        lines.push_back(r.allowed);
        continue;
      }
      std::string line = (r.note ? "note: " : "") + r.key + " = " + r.given;
      if (!r.allowed.empty()) line += "; allowed: " + r.allowed;
      texts.push_back(line + "; " + r.hint);
    }
    return texts;
  }
  // Returns the value of a line, "" if there is none.
  std::string line(const std::string& key) const {
    for (const std::string& l : lines) {
      if (l.starts_with(key + " = ")) return l.substr(key.size() + 3);
    }
    return "";
  }
  int32_t degree(int axis) const { return plan.plan.degree[axis]; }
};

}  // namespace yoke::testing
