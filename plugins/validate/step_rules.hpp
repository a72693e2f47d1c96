// The rules about a step: its arguments, its result, and what the ranks have in common.
#pragma once

#include <cstdint>

#include "plugins/validate/collectives.hpp"
#include "plugins/validate/model.hpp"
#include "plugins/validate/monitor.hpp"
#include "plugins/validate/ranks.hpp"

namespace yoke::validate {

// Checks the steps of a model. One thread at a time.
class StepRules {
 public:
  // plan: complete, outlives this object. knows_1_1: whether the backend was built with version 1.1
  // of the contract or later.
  StepRules(const YokePlan& plan, bool knows_1_1, const Ranks& ranks, Monitor& monitor)
      : plan_(plan), knows_1_1_(knows_1_1), ranks_(ranks), monitor_(monitor) {}

  // What is known about a step when it has returned.
  struct Seen {
    const YokeStepArgs* args;
    YokeStepResult result;
    int64_t cancel_checks;
    WatchedModel::StepFacts model;
    std::vector<WatchedCollectives::Issued> issued;
  };
  void before(const YokeStepArgs& args);
  // Collective over the world.
  void after(const Seen& seen);

  int64_t last_step() const { return last_step_; }
  void set_last_step(int64_t step) { last_step_ = step; }

 private:
  void check_micro_batch(const YokeMicroBatch* micro);
  void check_result(const Seen& seen);
  void check_numbers(const Seen& seen);
  void compare(const Seen& seen);
  void compare_operations(const std::vector<WatchedCollectives::Issued>& issued);
  bool in_one_group(int32_t a, int32_t b, uint32_t axes) const;

  const YokePlan& plan_;
  const bool knows_1_1_;
  const Ranks& ranks_;
  Monitor& monitor_;
  int64_t last_step_ = 0;
};

}  // namespace yoke::validate
