// Writes facts.jsonl in the run folder if record.facts is set. `yoke compare` reads this file to
// compare runs. Each line is an object:
//
//   {"run": {backend, version, data_ranks, accumulation, degrees, blocks, parameters, params,
//            clip, exp_avg_decay, other_decays, dtype, product, update,
//            costs {param, grad, optimizer, unsharded, activation, axes {...}}}}
//   {"step": n, "hashes": [hash of each whole parameter],
//    "violation": null | {kind, rank, tensor, text},
//    "loss", "grad_norm", "weight",
//    "traffic": [[axes, operation, dtype, calls, bytes, seconds] ...],
//    "ranks": [{"assigned": [sample numbers], "received": [fingerprints],
//               "losses": [[sum, weight, scale] ...]} ...]}
//
// Step 0 is the initial state; it has no loss, gradient norm, weight or traffic. Traffic is
// cumulative since the start. Doubles are written exactly, and NaN as null.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/run/job.hpp"
#include "core/run/verifier.hpp"

namespace yoke {

// Rank 0 has one. Not thread-safe.
class RecordFile {
 public:
  // Replaces the file `path` and writes the line of the run. Throws an Error that names the path.
  RecordFile(const std::string& path,
             const Job& job,
             const YokeModelSummary& model,
             const YokeWrapResult& costs);
  ~RecordFile();
  // Writes the line of the initial state. Throws an Error that names the path.
  void start(const StepReport& report);
  // Writes the line of a step. Throws an Error that names the path.
  void step(int64_t step,
            const YokeStepResult& result,
            const std::vector<OperationCount>& traffic,
            const StepReport& report);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace yoke
