// Runs the cases of a comparison in turn and determines how far they agree. Does not need LibTorch.
#pragma once

#include <chrono>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/compare/agreement.hpp"
#include "core/compare/cases.hpp"
#include "core/compare/likely_cause.hpp"
#include "core/compare/run_facts.hpp"

namespace yoke::compare {

// Plan describes a comparison completely. Its fields have been validated.
struct Plan {
  std::string program;                 // path of the yoke program
  std::string config;                  // path of the run file
  std::vector<std::string> overrides;  // overrides that all cases share
  std::vector<CaseSpec> cases;         // the first one is the baseline for speed
  std::optional<CaseSpec> reference;   // additional run with which the cases are compared
  std::string folder;                  // folder for all runs
  // Overrides for a run without evaluations, on the same training data.
  std::vector<std::string> without_evaluation{"eval.every=0", "eval.path="};
  std::string external_json;  // description of the run for external commands
  int64_t steps = 0, repeats = 3;
  int64_t tokens_per_step = 0;
  int threads = 1;                    // threads of each rank
  std::optional<Level> level;         // level that every case must reach; unset = by precision
  std::chrono::seconds timeout{600};  // time limit of one run
};

struct CaseResult {
  CaseSpec spec;
  std::string failure;               // why a repeat failed; "" = all repeats ran
  std::string log;                   // log file of the repeat that failed
  std::vector<RunFacts> runs;        // one per repeat; the first one is compared
  Agreement agreement;               // agreement with the reference
  Level required = Level::kL1;       // level that the case must reach
  std::optional<LikelyCause> cause;  // set if the agreement is below `required`
  bool repeatable = true;            // true if all repeats have the same losses, bit for bit
  // True if the backend declares an update of its own and no level was asked for: the case need not
  // agree with the reference.
  bool by_design = false;
  // Loss on the evaluation data after the last step, measured for cases that differ by design and
  // for the case that judges them; unset = unknown.
  std::optional<double> held_out_loss;
  std::vector<double> step_ms;  // median time of a step for each repeat; NaN = unknown

  bool passed() const {
    return failure.empty() && repeatable && (by_design || agreement.level >= required);
  }
  // Returns true if every repeat has a time.
  bool timed() const;
};

// PairAgreement is the agreement of two cases.
struct PairAgreement {
  size_t a = 0, b = 0;  // indices of the cases
  Agreement agreement;
};

// GateResult is the value that a gate of the command line has measured for one case.
struct GateResult {
  std::string gate;       // text of the gate as given
  std::string case_name;  // name of the case
  double value = 0;       // NaN = unknown
  bool passed = false;
};

struct Comparison {
  Plan plan;
  std::vector<CaseResult> cases;        // one for each case of the plan, in the same order
  std::optional<CaseResult> reference;  // result of the plan's reference
  size_t fallback_reference = 0;        // index of the case that judges without a reference
  std::vector<PairAgreement> pairs;     // one for each pair of cases that ran
  std::vector<GateResult> gates;        // filled by the caller of run_comparison()
  double load = NAN;                    // load average of the machine after the runs; NaN = unknown

  // Returns what the cases are compared with: the reference or, if it failed or the plan has none,
  // the first case that ran and does not update by a rule of its own, or else the first that ran.
  // NULL if none ran.
  const CaseResult* reference_case() const;
  // Returns the name of reference_case(); "" = none.
  std::string reference_name() const;
};

// Returns the median of the values; NaN if there are none.
double median(std::vector<double> values);
// Return the smallest and the largest of the values, which must not be empty.
double least(const std::vector<double>& values);
double most(const std::vector<double>& values);

// Runs all cases, repeat by repeat (A B C A B C ...), so that a change of the machine's load
// affects them alike. A case that fails is reported in its result and not repeated. `progress`
// receives a line for people before and after each run. Throws Error (CANCELLED) if interrupted.
Comparison run_comparison(const Plan& plan,
                          const std::function<void(const std::string&)>& progress);

}  // namespace yoke::compare
