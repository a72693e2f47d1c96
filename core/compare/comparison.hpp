// Runs the cases of a comparison, interleaved, and judges them. Does not need LibTorch.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/compare/agreement.hpp"
#include "core/compare/cases.hpp"
#include "core/compare/likely_cause.hpp"
#include "core/compare/run_facts.hpp"

namespace yoke::compare {

// What to do, complete and checked.
struct Plan {
  std::string program;                 // this yoke
  std::string config;                  // run file
  std::vector<std::string> overrides;  // of all cases
  std::vector<CaseSpec> cases;         // the first one is the baseline of speed
  std::optional<CaseSpec> reference;   // a run that only serves to judge the others
  std::string folder;                  // of all runs
  std::string external_json;           // what an external command is told of the run
  int64_t steps = 0, repeats = 3;
  int64_t tokens_per_step = 0;
  int threads = 1;                    // of every rank
  std::optional<Level> level;         // that every case must reach; unset = by precision
  std::chrono::seconds timeout{600};  // of one run
};

struct CaseResult {
  CaseSpec spec;
  std::string failure;         // why there is nothing to judge; "" = all repeats ran
  std::string log;             // of the failure
  std::vector<RunFacts> runs;  // one a repeat; the first one is judged
  Agreement agreement;
  Level required = Level::kL1;
  std::optional<LikelyCause> cause;  // of a verdict below `required`
  bool repeatable = true;            // every repeat gave the same losses, bit for bit
  std::vector<double> step_ms;       // median of each repeat
  std::vector<std::string> notes;

  bool passed() const { return failure.empty() && agreement.level >= required && repeatable; }
};

// The verdict of the case `b` against the case `a`, by index.
struct PairAgreement {
  size_t a = 0, b = 0;
  Agreement agreement;
};

struct Comparison {
  Plan plan;
  std::vector<CaseResult> cases;        // as in the plan
  std::optional<CaseResult> reference;  // as in the plan
  size_t fallback_reference = 0;        // index of the case that stands in if there is no reference
  std::vector<PairAgreement> pairs;     // every two cases that ran
  std::string reference_name() const;
  const CaseResult* reference_case()
      const;  // the reference or the case that stands in; NULL = none ran
};

// Median of the values; NaN of none.
double median(std::vector<double> values);

// Runs everything: repeat by repeat, case by case. A case that fails is told in its result and not
// repeated. progress: a line for people before and after each run. Ends early if interrupted.
Comparison run_comparison(const Plan& plan,
                          const std::function<void(const std::string&)>& progress);

}  // namespace yoke::compare
