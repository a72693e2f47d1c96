// facts.jsonl of a run folder: what `yoke compare` judges a run by (record.facts). Rank 0 writes
// it.
//
//   {"run": {backend, version, data_ranks, accumulation, degrees, blocks, parameters, params,
//            clip, adamw, beta1, dtype, costs {param, grad, optimizer, unsharded, activation, axes
//            {...}}}}
//   {"step": n, "hashes": [of whole parameters], "violation": null | {kind, rank, tensor, text},
//    "loss", "grad_norm", "weight", "traffic": [[axes, operation, dtype, calls, bytes, seconds]
//    ...], "ranks": [{"dealt": [samples], "fed": [fingerprints], "losses": [[sum, weight, scale]
//    ...]} ...]}
//
// Step 0 is the initial state and has no loss. Doubles are exact; NaN is null.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/run/job.hpp"
#include "core/run/verifier.hpp"

namespace yoke {

class RecordFile {
 public:
  // Writes the line of the run. Throws Error naming the path.
  RecordFile(const std::string& path,
            const Job& job,
            const YokeModelSummary& model,
            const YokeWrapResult& costs);
  ~RecordFile();
  void start(const StepReport& report);
  void step(int64_t step,
            const YokeStepResult& result,
            const std::vector<OperationCount>& traffic,
            const StepReport& report);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace yoke
