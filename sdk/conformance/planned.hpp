// The spec of a run, and the call of plan.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sdk/conformance/batch.hpp"
#include "sdk/conformance/check.hpp"
#include "yoke/error.hpp"

namespace yoke::conformance {

using Degrees = std::array<int32_t, YOKE_NUM_AXES>;
inline constexpr Degrees kUnset{};
// Returns these degrees, with 1 along all other axes.
Degrees along(std::initializer_list<std::pair<int, int32_t>> degrees);
// Returns the degrees above 1 as text, e.g. "dp_degree 2 x tp_degree 2".
std::string degrees_text(const Degrees& degrees);

// An optimizer of the contract, as a run names it.
struct OptimizerKind {
  int32_t kind;
  double momentum;
  const char* name;
};
// Returns all optimizers of the contract; a run prefers the first ones.
std::span<const OptimizerKind> optimizers();

inline constexpr int32_t kGlobalBatch = 8;
inline constexpr double kPeakRate = 0.05;                          // YokeOptimizer.lr
inline constexpr double kBeta1 = 0.9, kBeta2 = 0.95, kEps = 1e-8;  // the others of YokeOptimizer

// Returns whether the parameter with index i is one that Muon updates as a hidden matrix.
bool is_hidden_matrix(const YokeModelSummary& model, uint64_t i);

// A run: model, layout, options, optimizer and number of steps.
struct RunSpec {
  ModelSpec model;
  Degrees degrees = along({});  // 0 = plan chooses
  std::map<std::string, std::string> options;
  int32_t kind = YOKE_ADAMW;
  double momentum = 0, weight_decay = 0.1, clip = 0.5;
  int32_t global_batch = kGlobalBatch;
  int32_t micro_batch = 0;   // sequences of a data rank in one forward; 0 = all of them
  int32_t reduce_dtype = 0;  // 0 = plan chooses
  Targets targets = Targets::kAll;
  int steps = 6;

  int32_t world() const;                     // number of ranks
  std::vector<std::string> moments() const;  // kinds of the moments of its optimizer
  // Returns those of the parameter with index i: none if it is frozen, one if Muon updates it as a
  // hidden matrix.
  std::vector<std::string> moments_of(const YokeModelSummary& model, uint64_t i) const;
  // Returns the factor that turns the first moment after one step into the gradient.
  double gradient_factor() const;
  double lr(int64_t step) const { return 0.02 + 0.01 * static_cast<double>(step % 3); }
};
// The strings of a YokeRefusal.
struct PlanRefusal {
  std::string key, given, allowed, hint;
};

// The arguments of a call of plan, and its results. An object is neither copied nor moved, because
// the backend gets pointers to its members.
class Planned {
 public:
  Planned(Subject& subject, const ParallelBackend& backend, const RunSpec& spec);
  Planned(const Planned&) = delete;
  Planned& operator=(const Planned&) = delete;

  // Calls plan, collects its refusals and returns its code. Any thread, one call at a time.
  int32_t ask();
  // Calls plan and returns whether it accepts.
  bool accepts();
  // Calls plan and fills in the remaining fields as the host does. Throws NotRun if plan refuses,
  // and Failed if the product of the degrees is not the number of ranks.
  void accept();
  std::string refusals_text() const;  // refusals of the last call and the text of its error

  YokePlan plan{};
  YokeOptimizer optimizer{};
  YokePlanArgs args{};
  YokeError err;
  std::vector<PlanRefusal> refusals;
  OptionValues options;
  const YokeDescription& description() const { return description_; }
  const RunSpec& spec() const { return spec_; }
  // Records that a step has succeeded with this plan.
  void stepped() const;

 private:
  Subject& subject_;
  const ParallelBackend& backend_;
  const RunSpec spec_;
  YokeDescription description_;
  std::unique_ptr<TestModel> model_;
};

// Returns the spec if plan accepts it, else the first of variants(). If there is none, throws
// NotRun with the refusals.
RunSpec accepted_variant(Subject& subject, const ParallelBackend& backend, RunSpec spec);

// Returns copies of `spec` that set one more option, each to a value that is not its default.
// Copies that plan refuses are left out.
std::vector<RunSpec> variants(Subject& subject,
                              const ParallelBackend& backend,
                              const RunSpec& spec);

// Returns a run on one rank in which plan accepts the optimizer and the dtype: the first of
// optimizers(), in the most precise of the declared dtypes. Throws NotRun if plan refuses all of
// them.
RunSpec basic_run(Subject& subject, const ParallelBackend& backend, int steps = 6);
// Returns such a run of 3 steps with two micro-batches, for checks that are not about numbers.
RunSpec short_run(Subject& subject, const ParallelBackend& backend);

}  // namespace yoke::conformance
