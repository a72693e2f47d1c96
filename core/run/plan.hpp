// The plan of a run: made from the configuration, completed by the backend, checked by the host.
// Pure functions; no LibTorch, no communication.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/config/run_config.hpp"
#include "yoke/parallel_backend.h"

namespace yoke {

// A YokePlan together with what it points to. Not copyable, because the backend may keep the
// pointers.
class RunPlan {
 public:
  // Degrees and micro_batch that the configuration leaves unset are 0; the backend may fill them.
  RunPlan(const RunConfig& config, int32_t world_size);
  RunPlan(const RunPlan&) = delete;
  RunPlan& operator=(const RunPlan&) = delete;

  YokePlan& plan() { return plan_; }
  const YokePlan& plan() const { return plan_; }

  // Fills what the backend has left unset: degrees become 1, micro_batch becomes the largest legal
  // value up to max_micro_batch, and the reduce dtype becomes fp64 for fp64 parameters and
  // fp32 otherwise.
  // Returns the faults of the result with the nearest legal values: the product of the degrees must
  // be the world size, and data ranks and micro_batch must divide the batch.
  std::vector<std::string> complete(int64_t max_micro_batch);

  // Both require that complete() has returned no faults.
  int32_t data_ranks() const;    // dp_replicate x dp_shard
  int32_t accumulation() const;  // micro-batches of a step on each data rank

 private:
  YokeOptimizer optimizer_;
  YokePlan plan_;
};

// Returns the faults of a plan that a backend has filled: values that were set in `asked` and have
// changed, and values that do not exist. `optimizer` is a copy of
// *asked.optimizer from before the call. These are faults of the backend and not of the user.
std::vector<std::string> faults_of_backend(const YokePlan& asked,
                                           const YokeOptimizer& optimizer,
                                           const YokePlan& plan);

// Returns everything that the ranks must agree on as one line of text. Ranks compare it before
// init.
std::string fingerprint(const YokePlan& plan);

// Returns YOKE_F32 for "fp32". Throws Error(INVALID_ARGUMENT) for an unknown name; the
// configuration has already refused those.
int32_t dtype_by_name(const std::string& name);

}  // namespace yoke
