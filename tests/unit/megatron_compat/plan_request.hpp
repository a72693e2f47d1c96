// Requests a plan for a run and a Megatron command line, without LibTorch.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "plugins/megatron_compat/config/config.hpp"
#include "plugins/megatron_compat/plan.hpp"
#include "tests/support/mock_host.hpp"
#include "tests/unit/megatron_compat/llama_summary.hpp"

namespace yoke::megatron_compat::testing {

// A backend that makes plans like the plugin, but lacks its LibTorch part.
class PlanOnly : public Backend {
 public:
  const YokeDescription& describe() const override {
    static const YokeDescription description = [] {
      YokeDescription d{};
      d.header = YOKE_HEADER(YokeDescription, YOKE_ID_DESCRIPTION);
      d.name = view("megatron_compat");
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

// A run of two ranks that agrees with the arguments below.
struct PlanRequest {
  // Arguments that describe the run. A test adds others, or changes these.
  std::string model =
      "--num-layers 2 --hidden-size 64 --ffn-hidden-size 256 --num-attention-heads 8 "
      "--group-query-attention --num-query-groups 4 --normalization RMSNorm --swiglu "
      "--disable-bias-linear --hidden-dropout 0 --attention-dropout 0 "
      "--position-embedding-type rope --untie-embeddings-and-output-weights --vocab-size 1024 "
      "--seq-length 64 ";
  std::string train =
      "--micro-batch-size 2 --global-batch-size 8 --train-iters 20 --lr 1e-3 "
      "--lr-decay-style constant --weight-decay 0.1 --adam-beta2 0.95 --clip-grad 1 ";
  std::string more;  // other arguments
  Dims dims{.decay_matrices = true};
  std::map<std::string, std::string> options;  // options of the run file
  yoke::testing::MockPlan plan;
  std::vector<std::string> lines;  // lines of a run file, "key = value"

  PlanRequest() {
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
  explicit PlanRequest(std::string arguments) : PlanRequest() { more = std::move(arguments); }
  PlanRequest(const PlanRequest&) = delete;

  // Makes the plan and returns its refusals and notes; notes start with "note: ".
  std::vector<std::string> ask() {
    plan.options = options;
    const std::string file = model + train + more;
    if (!file.empty()) plan.options["args_file"] = file;
    const LlamaSummary summary(dims);
    YokeError err = make_error();
    plan.refusals.clear();
    plan.ask(detail::Table<PlanOnly>::kTable, summary.get(), &err);
    std::vector<std::string> texts;
    lines.clear();
    for (const auto& r : plan.refusals) {
      if (r.note && !r.allowed.empty()) {
        lines.push_back(r.allowed);
        continue;
      }
      std::string text = (r.note ? "note: " : "") + r.key + " = " + r.given;
      if (!r.allowed.empty()) text += "; allowed: " + r.allowed;
      texts.push_back(text + "; " + r.hint);
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

}  // namespace yoke::megatron_compat::testing
