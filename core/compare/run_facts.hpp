// Reads what one run recorded for a comparison: metrics.jsonl and facts.jsonl of a run folder, or
// the lines that an external command wrote. Does not need LibTorch.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace yoke::compare {

// Operation counts the calls of one collective with one dtype along one set of axes in one step.
struct Operation {
  std::string axes, name, dtype;
  int64_t calls = 0, bytes = 0;  // number of calls, and payload of rank 0 in bytes
  double seconds = 0;            // time that rank 0 waited
};

// Loss is the loss of one forward of the last block, as core/verify observed it: the sum over the
// targets of the micro-batch, the number of targets, and the factor by which the backward scaled
// it. NaN = unknown.
struct Loss {
  double sum = 0, targets = 0, scale = 0;
};

// The first problem that the verification of a step found.
struct Violation {
  std::string kind;  // "samples" | "replicas"
  int32_t rank = -1;
  std::string tensor, text;
};

// StepFacts are the records of one step.
struct StepFacts {
  int64_t step = 0;
  double loss = 0, grad_norm = 0;         // NaN = unknown
  double seconds = 0;                     // NaN = unknown
  double tokens = 0;                      // tokens of the step; NaN = unknown
  int64_t memory = 0;                     // peak resident bytes of rank 0; 0 = unknown
  std::vector<uint64_t> hashes;           // hash of each full parameter after the step
  std::vector<std::vector<Loss>> losses;  // losses of each rank
  std::vector<Operation> traffic;         // collectives of this step
  std::optional<Violation> violation;
};

// Costs are the bytes that a rank needs according to the backend; -1 = unknown.
struct Costs {
  int64_t param = -1, grad = -1, optimizer = -1, unsharded = -1, activation = -1;
  std::map<std::string, int64_t> axes;  // traffic of a step for each set of axes; 0 or -1 = unknown
};

// Products are the matrix products of all steps together, in a run with products in fp8.
struct Products {
  double seconds = 0, rounding_seconds = 0;      // time in products and in rounding to fp8
  double all_seconds = 0;                        // time of the steps
  int64_t rounded = 0, largest = 0, zeroed = 0;  // numbers; rounded = 0: none, or unknown
};

// RunFacts are the records of a whole run.
struct RunFacts {
  std::string dir;  // path of the run folder; "" = external
  std::string backend, version, dtype;
  std::string product;                 // precision.product; "" = external
  std::string update;                  // "contract", "own" or "local"; "" = external
  std::map<std::string, int> degrees;  // value of each degree key, such as dp_degree
  int32_t data_ranks = 1, accumulation = 1;
  int64_t blocks = 0, parameters = 0;  // number of the model's blocks, and of its elements
  std::vector<std::string> params;     // names of the parameters, in the order of the model
  double clip = 0;
  // Decay rate of the moment "exp_avg"; unset = the optimizer has no such moment.
  std::optional<double> exp_avg_decay;
  std::map<std::string, double> other_decays;  // rates of the parameters that have another one
  Costs costs;
  StepFacts start;               // step 0: hashes and violation
  std::vector<StepFacts> steps;  // steps 1, 2, ...
  // Mean loss of the evaluation after the last step; unset = there was none.
  std::optional<double> held_out_loss;
  std::optional<Products> products;  // set if the run has measured them

  bool external() const { return dir.empty(); }
  // Returns true if the backend declares that it updates by a rule of its own, so that its numbers
  // differ from those of other backends by design.
  bool differs_by_design() const { return update == "own" || update == "local"; }
  int world() const;  // number of ranks
  // Returns the layout for a table: "dp_degree 2, dp_shards 2", "one rank" or "external".
  std::string layout() const;
};

// Reads the records of a run folder. Throws Error (DATA_LOSS), naming the file and the line that
// cannot be read.
RunFacts read_run(const std::string& dir);

// Reads the lines of an external command: one object per step, starting with step 1. It has `step`
// and `loss`, and `grad_norm`, `step_seconds` and `memory` if they are known. Throws Error
// (DATA_LOSS), naming what is wrong and what is allowed.
RunFacts read_external(const std::string& path, int64_t steps);

}  // namespace yoke::compare
