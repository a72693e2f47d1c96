// A comparison is a sequence of ordinary runs: each case is a separate `yoke train`, or an external
// command, with its own folder. No code of the comparison runs in the training processes, so the
// compared runs are what a user would get. The runs leave their losses, hashes, traffic and a few
// states in their folders, and everything else is computed from these files afterwards.
//
// The states of a run are large, so only those after step 1 and step 10 are saved at first. If a
// case differs later, it runs again together with the reference, this time with the states around
// the first bad step, which find_likely_cause() needs.

#include "core/compare/comparison.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/base/files.hpp"
#include "core/base/text.hpp"
#include "core/compare/case_process.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke::compare {
namespace {

// The first steps fill caches and memory pools, so they are left out of the times.
constexpr size_t kWarmup = 5;
constexpr size_t kReasonLines = 3, kReasonLength = 400;

std::string list(const std::vector<int64_t>& steps) {
  std::string text;
  for (const int64_t step : steps) text += (text.empty() ? "" : ",") + std::to_string(step);
  return text;
}

// Returns the last lines of the output as one line for an error message.
std::string joined_tail(const std::vector<std::string>& lines) {
  std::string text;
  const size_t first = lines.size() > kReasonLines ? lines.size() - kReasonLines : 0;
  for (size_t i = first; i < lines.size(); ++i) text += (text.empty() ? "" : " | ") + lines[i];
  if (text.size() > kReasonLength) text = "... " + text.substr(text.size() - kReasonLength);
  return text.empty() ? "it printed nothing" : text;
}

// Returns the reason from exit.json, which describes a failure better than the last lines of the
// output; "" = there is none.
std::string reason_in(const std::string& dir) {
  const std::string path = dir + "/exit.json";
  if (!std::filesystem::exists(path)) return "";
  const auto json = nlohmann::json::parse(read_text(path, 1 << 20), nullptr, false);
  return json.is_object() ? json.value("reason", "") : "";
}

// Runner runs one case at a time.
class Runner {
 public:
  Runner(const Plan& plan, const std::function<void(const std::string&)>& progress)
      : plan_(plan), progress_(progress) {}

  // Runs a case once, in the folder `name`. The run saves its state after each of the steps in
  // `states`. Throws Error with the reason if the run failed.
  RunFacts run(const CaseSpec& spec, const std::string& name, const std::vector<int64_t>& states) {
    const std::string dir = plan_.folder + "/" + spec.name + "/" + name;
    const std::string log = dir + ".log";
    make_folders(plan_.folder + "/" + spec.name);
    const RankCommand command =
        spec.external() ? external_command(spec, dir) : yoke_command(spec, dir, states);
    const CommandResult result = run_command(command, log, plan_.timeout);
    if (interrupted_by() != 0) throw Error(YOKE_CANCELLED, "interrupted");
    if (result.timed_out) {
      throw Error(YOKE_DEADLINE_EXCEEDED,
                  concat("did not end within ",
                         plan_.timeout.count(),
                         " s (--timeout); it printed last: ",
                         joined_tail(result.last_lines)));
    }
    if (spec.external()) return external_facts(dir, result);
    if (!result.ending.ok()) {
      const std::string reason = reason_in(dir);
      throw Error(YOKE_UNKNOWN,
                  ending_text(result.ending) + ": " +
                      (reason.empty() ? joined_tail(result.last_lines) : reason));
    }
    return read_run(dir);
  }

 private:
  RankCommand yoke_command(const CaseSpec& spec,
                           const std::string& dir,
                           const std::vector<int64_t>& states) const {
    // These keys belong to the comparison, so they take precedence over those of the user.
    const std::vector<std::string> ours = {"train.steps=" + std::to_string(plan_.steps),
                                           "metrics.every=1",
                                           "metrics.tensorboard=false",
                                           "checkpoint.every=0",
                                           "checkpoint.keep=1000000",
                                           "checkpoint.resume=never",
                                           "eval.every=0",
                                           "record.facts=true",
                                           "record.states=" + list(states),
                                           "run.dir=" + dir};
    RankCommand command{{plan_.program, "train", plan_.config}, variables()};
    for (const std::string& word : merged(merged(plan_.overrides, spec.overrides), ours))
      command.argv.push_back(word);
    if (spec.nproc)
      command.argv.insert(command.argv.end(), {"--nproc", std::to_string(*spec.nproc)});
    return command;
  }

  RankCommand external_command(const CaseSpec& spec, const std::string& dir) const {
    make_folders(dir);
    replace_text(dir + "/run.json", plan_.external_json);
    RankCommand command{{"/bin/sh", "-c", spec.command}, variables()};
    command.variables.emplace_back("YOKE_COMPARE_RUN", dir + "/run.json");
    command.variables.emplace_back("YOKE_COMPARE_OUT", dir + "/steps.jsonl");
    return command;
  }

  std::vector<std::pair<std::string, std::string>> variables() const {
    return {{"OMP_NUM_THREADS", std::to_string(plan_.threads)}};
  }

  // External programs sometimes abort while they shut down their process groups. So success depends
  // on what they wrote, not on how they ended.
  RunFacts external_facts(const std::string& dir, const CommandResult& result) const {
    try {
      return read_external(dir + "/steps.jsonl", plan_.steps);
    } catch (const Error& e) {
      const std::string how = result.ending.ok() ? "" : ending_text(result.ending) + ": ";
      throw Error(YOKE_DATA_LOSS,
                  how + e.what() + "; it printed last: " + joined_tail(result.last_lines));
    }
  }

  const Plan& plan_;
  const std::function<void(const std::string&)>& progress_;
};

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

// Session performs one comparison.
class Session {
 public:
  Session(const Plan& plan, const std::function<void(const std::string&)>& progress)
      : runner_(plan, progress), progress_(progress) {
    result_.plan = plan;
    for (const CaseSpec& spec : plan.cases) result_.cases.emplace_back().spec = spec;
    if (plan.reference) result_.reference.emplace().spec = *plan.reference;
    total_ = plan.repeats * static_cast<int64_t>(plan.cases.size()) + (plan.reference ? 1 : 0);
  }

  Comparison run() {
    const Plan& plan = result_.plan;
    if (result_.reference) run_case(*result_.reference, 1);
    for (int64_t repeat = 1; repeat <= plan.repeats; ++repeat) {
      for (CaseResult& c : result_.cases) {
        if (c.failure.empty()) run_case(c, repeat);
      }
    }
    progress_("judging");
    compare_all();
    remove_states();
    return std::move(result_);
  }

 private:
  // Returns the steps after which a run saves its state. Only the first repeat of a case saves any:
  // after step 1, for the first gradient, and after step 10, the last one whose parameters have
  // bounds.
  std::vector<int64_t> states(int64_t repeat) const {
    if (repeat > 1) return {};
    return {1, std::min<int64_t>(10, result_.plan.steps)};
  }

  void run_case(CaseResult& c, int64_t repeat) {
    const std::string which =
        concat("[", ++done_, "/", total_, "] ", c.spec.name, ", run ", repeat);
    progress_(which + " ...");
    try {
      c.runs.push_back(runner_.run(c.spec, "run" + std::to_string(repeat), states(repeat)));
      c.step_ms.push_back(median_step_ms(c.runs.back()));
      const std::vector<StepFacts>& steps = c.runs.back().steps;
      progress_(which + string_printf(": %.1f ms a step, loss %.6g",
                                      c.step_ms.back(),
                                      steps.empty() ? NAN : steps.back().loss));
    } catch (const Error& e) {
      if (e.code() == YOKE_CANCELLED) throw;
      c.failure = e.what();
      c.log = result_.plan.folder + "/" + c.spec.name + "/run" + std::to_string(repeat) + ".log";
      progress_(which + " failed: " + c.failure);
    }
  }

  // Compares every case with the reference, and every two cases with each other.
  void compare_all() {
    const auto ran = [](const CaseResult& c) { return c.failure.empty(); };
    const auto first = std::find_if(result_.cases.begin(), result_.cases.end(), ran);
    if (first != result_.cases.end())
      result_.fallback_reference = static_cast<size_t>(first - result_.cases.begin());
    const CaseResult* reference = result_.reference_case();
    if (reference == nullptr) return;
    for (CaseResult& c : result_.cases) {
      if (!ran(c)) continue;
      for (const RunFacts& again : c.runs)
        c.repeatable = c.repeatable && (c.spec.external() || same_losses(c.runs[0], again));
      c.required = result_.plan.level.value_or(required_level(reference->runs[0], c.runs[0]));
      c.agreement = compare_runs(reference->runs[0], c.runs[0], c.required);
      if (c.agreement.level < c.required) c.cause = explain(*reference, c);
    }
    for (size_t a = 0; a < result_.cases.size(); ++a) {
      for (size_t b = a + 1; b < result_.cases.size(); ++b) {
        const CaseResult &x = result_.cases[a], &y = result_.cases[b];
        if (ran(x) && ran(y))
          result_.pairs.push_back(
              {a, b, compare_runs(x.runs[0], y.runs[0], std::min(x.required, y.required))});
      }
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
    const bool enough = c.agreement.first_bad == 1 && has_state(c.runs[0], 1);
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
  int64_t done_ = 0, total_ = 0;
};

}  // namespace

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

Comparison run_comparison(const Plan& plan,
                          const std::function<void(const std::string&)>& progress) {
  return Session(plan, progress).run();
}

}  // namespace yoke::compare
