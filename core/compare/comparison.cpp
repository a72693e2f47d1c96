// A comparison is a sequence of ordinary runs: each case is a separate `yoke train`, or an external
// command, with its own folder. No code of the comparison runs in the training processes, so the
// compared runs are what a user would get. The runs leave their losses, hashes, traffic and a few
// states in their folders, and everything else is computed from these files afterwards.
//
// The states of a run are large, so only those after step 1 and step 10 are saved at first. If a
// case differs later, it runs again together with the reference, this time with the states around
// the first bad step, which find_likely_cause() needs. If a difference may be rounding, the
// reference also runs in fp64. Cases that differ by design are not judged step by step: they run
// once more, with an evaluation at the end, and so does the reference.

#include "core/compare/comparison.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>

#include "core/base/files.hpp"
#include "core/base/text.hpp"
#include "core/compare/case_process.hpp"
#include "core/compare/runner.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke::compare {
namespace {

// The first steps fill caches and memory pools, so they are left out of the times.
constexpr size_t kWarmup = 5;

// Returns the median time of a step after the warm-up, in milliseconds.
double median_step_ms(const RunFacts& run) {
  const size_t warmup = std::min(kWarmup, run.steps.size() / 4);
  std::vector<double> ms;
  for (size_t i = warmup; i < run.steps.size(); ++i) {
    if (!std::isnan(run.steps[i].seconds)) ms.push_back(1e3 * run.steps[i].seconds);
  }
  return median(ms);
}

bool same_losses(const RunFacts& a, const RunFacts& b) {
  return std::equal(a.steps.begin(),
                    a.steps.end(),
                    b.steps.begin(),
                    b.steps.end(),
                    [](const StepFacts& x, const StepFacts& y) {
                      return x.loss == y.loss && x.hashes == y.hashes;
                    });
}

// Returns true if the verification found a fault, such as replicas that differ.
bool violates(const RunFacts& run) {
  return run.start.violation ||
         std::any_of(run.steps.begin(), run.steps.end(), [](const StepFacts& s) {
           return s.violation.has_value();
         });
}

// Session performs one comparison.
class Session {
 public:
  Session(const Plan& plan, const std::function<void(const std::string&)>& progress)
      : runner_(plan), progress_(progress) {
    result_.plan = plan;
    for (const CaseSpec& spec : plan.cases) result_.cases.emplace_back().spec = spec;
    if (plan.reference) result_.reference.emplace().spec = *plan.reference;
    total_ = plan.repeats * static_cast<int64_t>(plan.cases.size()) + (plan.reference ? 1 : 0);
  }

  Comparison run() {
    const Plan& plan = result_.plan;
    if (result_.reference) run_reference(*result_.reference);
    for (int64_t repeat = 1; repeat <= plan.repeats; ++repeat) {
      for (CaseResult& c : result_.cases) {
        // Only the first repeat is compared with other cases.
        if (c.failure.empty())
          run_case(c, repeat, repeat == 1 ? compared_states() : std::vector<int64_t>());
      }
    }
    if (::getloadavg(&result_.load, 1) != 1) result_.load = NAN;
    progress_("judging");
    compare_all();
    remove_states();
    return std::move(result_);
  }

 private:
  // Returns the steps after which a run that is compared saves its state: step 1, for the first
  // gradient, and step 10, the last one whose parameters have bounds.
  std::vector<int64_t> compared_states() const {
    return {1, std::min<int64_t>(10, result_.plan.steps)};
  }

  void run_case(CaseResult& c, int64_t number, const std::vector<int64_t>& states) {
    const std::string which =
        concat("[", ++done_, "/", total_, "] ", c.spec.name, ", run ", number);
    progress_(which + " ...");
    try {
      c.runs.push_back(runner_.run(c.spec, "run" + std::to_string(number), states));
      c.step_ms.push_back(median_step_ms(c.runs.back()));
      const std::vector<StepFacts>& steps = c.runs.back().steps;
      progress_(which + string_printf(": %.1f ms a step, loss %.6g",
                                      c.step_ms.back(),
                                      steps.empty() ? NAN : steps.back().loss));
    } catch (const Error& e) {
      if (e.code() == YOKE_CANCELLED) throw;
      c.failure = e.what();
      c.log = result_.plan.folder + "/" + c.spec.name + "/run" + std::to_string(number) + ".log";
      progress_(which + " failed: " + c.failure);
    }
  }

  // A backend with an update of its own cannot judge others, so the default backend takes its
  // place.
  void run_reference(CaseResult& reference) {
    run_case(reference, 1, compared_states());
    if (!reference.failure.empty() || !reference.runs[0].differs_by_design()) return;
    const std::string judge = YOKE_DEFAULT_BACKEND;
    progress_(reference.runs[0].backend + " updates by a rule of its own, so " + judge +
              " is the reference");
    reference.spec.overrides = merged(reference.spec.overrides, {"parallel_backend=" + judge});
    reference.runs.clear();
    reference.step_ms.clear();
    ++total_;
    run_case(reference, 2, compared_states());
  }

  // Returns the case that judges if the plan has no reference, or if that failed: the first one
  // that ran, if possible one that updates by the contract's rule.
  size_t fallback_reference() const {
    std::optional<size_t> first;
    for (size_t i = 0; i < result_.cases.size(); ++i) {
      const CaseResult& c = result_.cases[i];
      if (!c.failure.empty()) continue;
      if (!c.runs[0].differs_by_design()) return i;
      if (!first) first = i;
    }
    return first.value_or(0);
  }

  // Compares every case with the reference, and every two cases with each other.
  void compare_all() {
    const auto ran = [](const CaseResult& c) { return c.failure.empty(); };
    result_.fallback_reference = fallback_reference();
    const CaseResult* reference = result_.reference_case();
    if (reference == nullptr) return;
    for (CaseResult& c : result_.cases) {
      if (!ran(c)) continue;
      for (const RunFacts& again : c.runs)
        c.repeatable = c.repeatable && (c.spec.external() || same_losses(c.runs[0], again));
      c.required = result_.plan.level.value_or(required_level(reference->runs[0], c.runs[0]));
      c.agreement = agreement_of(reference->runs[0], c.runs[0], c.required);
      c.by_design = c.runs[0].differs_by_design() && !result_.plan.level && !violates(c.runs[0]);
      if (c.agreement.level < c.required && !c.by_design) c.cause = explain(*reference, c);
    }
    measure_held_out_losses(*reference);
    for (size_t a = 0; a < result_.cases.size(); ++a) {
      for (size_t b = a + 1; b < result_.cases.size(); ++b) {
        const CaseResult &x = result_.cases[a], &y = result_.cases[b];
        if (ran(x) && ran(y))
          result_.pairs.push_back(
              {a, b, agreement_of(x.runs[0], y.runs[0], std::min(x.required, y.required))});
      }
    }
  }

  // Measures the loss on the evaluation data for the cases that differ by design, which have no
  // other measure of what they learn, and for the reference. A job without evaluation data has no
  // such loss.
  void measure_held_out_losses(const CaseResult& reference) {
    std::vector<CaseResult*> wanted;
    for (CaseResult& c : result_.cases) {
      if (&c == &reference || (c.by_design && c.passed())) wanted.push_back(&c);
    }
    if (result_.reference && &*result_.reference == &reference)
      wanted.push_back(&*result_.reference);
    if (wanted.size() < 2 || reference.spec.external()) return;
    for (CaseResult* c : wanted) {
      progress_("running " + c->spec.name + " again to measure its held-out loss");
      try {
        c->held_out_loss = runner_.held_out_loss(c->spec);
      } catch (const Error& e) {
        if (e.code() == YOKE_CANCELLED) throw;
        progress_("the held-out loss is unknown: " + std::string(e.what()));
        return;
      }
    }
  }

  // Compares two runs. If their difference may be rounding, a run in fp64 decides.
  Agreement agreement_of(const RunFacts& a, const RunFacts& b, Level required) {
    Agreement v = compare_runs(a, b, required);
    const bool by_design = a.differs_by_design() || b.differs_by_design();
    if (by_design || required != Level::kL1 || !needs_exact_run(a, b, v)) return v;
    if (!exact_tried_) run_exactly();
    if (exact_) judge_rounding(*exact_, a, b, v);
    return v;
  }

  // Runs the reference in fp64, unless it is external.
  void run_exactly() {
    exact_tried_ = true;
    CaseSpec spec = result_.reference_case()->spec;
    if (spec.external()) return;
    spec.overrides = merged(spec.overrides, {"precision.param=fp64", "precision.reduce=fp64"});
    progress_("running " + spec.name + " in fp64 to see whether a difference is rounding");
    try {
      exact_ = runner_.run(spec, "in-fp64", compared_states());
    } catch (const Error& e) {
      if (e.code() == YOKE_CANCELLED) throw;
      progress_("the run in fp64 failed: " + std::string(e.what()));
    }
  }

  // Returns the likely cause of a difference. Runs the case and the reference again if the states
  // around the first bad step were not saved. If the first step is bad already, the state after it
  // suffices.
  LikelyCause explain(const CaseResult& reference, const CaseResult& c) {
    const std::vector<int64_t> wanted = wanted_states(c.agreement.first_bad);
    const auto saved = [&](const CaseResult& x) {
      return x.spec.external() || std::all_of(wanted.begin(), wanted.end(), [&](int64_t step) {
               return has_state(x.runs[0], step);
             });
    };
    const bool enough = c.agreement.first_bad == 1 && has_state(c.runs[0], 1) &&
                        (reference.spec.external() || has_state(reference.runs[0], 1));
    if (enough || (saved(reference) && saved(c)))
      return find_likely_cause(reference.runs[0], c.runs[0], c.agreement);
    progress_(c.spec.name + " differs from " + reference.spec.name + " at step " +
              std::to_string(c.agreement.first_bad) + ": running both again to see why");
    try {
      const std::string name = "again-for-" + c.spec.name;
      return find_likely_cause(again(reference, name, wanted), again(c, name, wanted), c.agreement);
    } catch (const Error& e) {
      if (e.code() == YOKE_CANCELLED) throw;
      LikelyCause cause = find_likely_cause(reference.runs[0], c.runs[0], c.agreement);
      cause.explanation += std::string("; running again failed: ") + e.what();
      return cause;
    }
  }

  RunFacts again(const CaseResult& c, const std::string& name, const std::vector<int64_t>& states) {
    return c.spec.external() ? c.runs[0] : runner_.run(c.spec, name, states);
  }

  // Removes all saved states: they are large, and everything has been read from them.
  void remove_states() {
    std::vector<std::string> folders;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(result_.plan.folder)) {
      if (entry.is_directory() && entry.path().filename() == "checkpoints")
        folders.push_back(entry.path().string());
    }
    for (const std::string& folder : folders) remove_tree(folder);
  }

  Comparison result_;
  Runner runner_;
  const std::function<void(const std::string&)>& progress_;
  std::optional<RunFacts> exact_;  // the reference in fp64
  bool exact_tried_ = false;
  int64_t done_ = 0, total_ = 0;
};

}  // namespace

bool CaseResult::timed() const {
  return failure.empty() && !step_ms.empty() &&
         std::none_of(step_ms.begin(), step_ms.end(), [](double ms) { return std::isnan(ms); });
}

std::string Comparison::reference_name() const {
  const CaseResult* reference = reference_case();
  return reference == nullptr ? "" : reference->spec.name;
}

const CaseResult* Comparison::reference_case() const {
  if (reference && reference->failure.empty()) return &*reference;
  if (cases.empty() || !cases[fallback_reference].failure.empty()) return nullptr;
  return &cases[fallback_reference];
}

double median(std::vector<double> values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double least(const std::vector<double>& values) {
  return *std::min_element(values.begin(), values.end());
}
double most(const std::vector<double>& values) {
  return *std::max_element(values.begin(), values.end());
}

Comparison run_comparison(const Plan& plan,
                          const std::function<void(const std::string&)>& progress) {
  return Session(plan, progress).run();
}

}  // namespace yoke::compare
