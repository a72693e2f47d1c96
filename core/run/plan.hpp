// From what a run wants to what every rank does: the plan, completed by the backend and checked by
// the host. Pure; no LibTorch, no communication.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/config/run_config.hpp"
#include "yoke/parallel_backend.h"

namespace yoke {

// A YokePlan that owns what it points to. Not copyable: the backend may keep the pointers.
class RunPlan {
 public:
  // Unset degrees and micro_batch stay 0 for the backend to fill.
  RunPlan(const RunConfig& config, int32_t world_size);
  RunPlan(const RunPlan&) = delete;
  RunPlan& operator=(const RunPlan&) = delete;

  YokePlan& plan() { return plan_; }
  const YokePlan& plan() const { return plan_; }

  // After the backend's plan: degrees still unset become 1, an unset micro_batch is chosen, an
  // unset reduce dtype becomes fp64 for fp64 and fp32 otherwise. Returns every fault of the result:
  // product of the degrees, divisibility of the batch, with the nearest legal values.
  std::vector<std::string> complete(int64_t max_micro_batch);

  int32_t data_ranks() const;
  int32_t accumulation() const;  // micro-batches per step and data rank; complete() first

 private:
  YokeOptimizer optimizer_;
  YokePlan plan_;
};

// All that ranks must agree on, as one line of text; compared between ranks before init.
std::string fingerprint(const YokePlan& plan);

// "fp32" -> YOKE_F32. The configuration has checked the name.
int32_t dtype_by_name(const std::string& name);

}  // namespace yoke
