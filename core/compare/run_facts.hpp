// What one run left for the judge: metrics.jsonl and facts.jsonl of a run folder, or the lines of
// an external command. No LibTorch.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace yoke::compare {

// Of one operation with one dtype along one set of axes, in one step.
struct Operation {
  std::string axes, name, dtype;
  int64_t calls = 0, bytes = 0;
  double seconds = 0;
};

// A forward of the last block, as core/verify saw it. NaN = not seen.
struct Loss {
  double sum = 0, weight = 0, scale = 0;
};

struct Violation {
  std::string kind;  // "samples" | "replicas"
  int32_t rank = -1;
  std::string tensor, text;
};

struct StepFacts {
  int64_t step = 0;
  double loss = 0, grad_norm = 0;         // NaN = not known
  double seconds = 0;                     // NaN = not known
  int64_t memory = 0;                     // peak resident bytes of rank 0; 0 = not known
  std::vector<uint64_t> hashes;           // of whole parameters after the step
  std::vector<std::vector<Loss>> losses;  // per rank
  std::vector<Operation> traffic;
  std::optional<Violation> violation;
};

// Bytes that a backend says a rank needs; -1 = not known.
struct Costs {
  int64_t param = -1, grad = -1, optimizer = -1, unsharded = -1, activation = -1;
  std::map<std::string, int64_t> axes;  // traffic of a step; 0 and -1 = not known
};

struct RunFacts {
  std::string dir;  // run folder; "" = external
  std::string backend, version, dtype;
  std::map<std::string, int> degrees;  // by key: dp_degree ...
  int32_t data_ranks = 1, accumulation = 1;
  int64_t blocks = 0, parameters = 0;
  std::vector<std::string> params;  // names, in the order of the model
  double clip = 0, beta1 = 0;
  bool adamw = true;
  Costs costs;
  StepFacts start;               // step 0: hashes and violation
  std::vector<StepFacts> steps;  // 1, 2, ...

  bool external() const { return dir.empty(); }
  int world() const;
  std::string layout() const;  // "dp_degree 2, dp_shards 2", "one rank", "external"
};

// Throws Error(DATA_LOSS) naming file and line of what cannot be read.
RunFacts read_run(const std::string& dir);

// The lines of an external command: one object a step, from step 1 on, with step and loss, and if
// known grad_norm, step_seconds, memory. Throws Error(DATA_LOSS) saying what is wrong and allowed.
RunFacts read_external(const std::string& path, int64_t steps);

}  // namespace yoke::compare
