#include "core/compare/runner.hpp"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/base/files.hpp"
#include "core/base/text.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke::compare {
namespace {

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

}  // namespace

RunFacts Runner::run(const CaseSpec& spec,
                     const std::string& name,
                     const std::vector<int64_t>& states) {
  const std::string dir = plan_.folder + "/" + spec.name + "/" + name;
  if (spec.external()) return run_external(spec, dir);
  return run_yoke(spec, dir, merged(plan_.without_evaluation, {"record.states=" + list(states)}));
}

double Runner::held_out_loss(const CaseSpec& spec) {
  const std::string dir = plan_.folder + "/" + spec.name + "/held-out";
  const RunFacts run = run_yoke(spec, dir, {"eval.every=" + std::to_string(plan_.steps)});
  if (!run.held_out_loss) throw Error(YOKE_DATA_LOSS, dir + "/metrics.jsonl has no evaluation");
  return *run.held_out_loss;
}

CommandResult Runner::run_to_end(const RankCommand& command, const std::string& dir) {
  CommandResult result = run_command(command, dir + ".log", plan_.timeout);
  if (interrupted_by() != 0) throw Error(YOKE_CANCELLED, "interrupted");
  if (result.timed_out) {
    throw Error(YOKE_DEADLINE_EXCEEDED,
                concat("did not end within ",
                       plan_.timeout.count(),
                       " s (--timeout); it printed last: ",
                       joined_tail(result.last_lines)));
  }
  return result;
}

RunFacts Runner::run_external(const CaseSpec& spec, const std::string& dir) {
  make_folders(dir);
  return external_facts(dir, run_to_end(external_command(spec, dir), dir));
}

RunFacts Runner::run_yoke(const CaseSpec& spec,
                          const std::string& dir,
                          const std::vector<std::string>& ours) {
  make_folders(plan_.folder + "/" + spec.name);
  const CommandResult result = run_to_end(yoke_command(spec, dir, ours), dir);
  if (!result.ending.ok()) {
    const std::string reason = reason_in(dir);
    throw Error(YOKE_UNKNOWN,
                ending_text(result.ending) + ": " +
                    (reason.empty() ? joined_tail(result.last_lines) : reason));
  }
  return read_run(dir);
}

RankCommand Runner::yoke_command(const CaseSpec& spec,
                                 const std::string& dir,
                                 const std::vector<std::string>& ours) const {
  const std::vector<std::string> always = {"train.steps=" + std::to_string(plan_.steps),
                                           "metrics.every=1",
                                           "metrics.tensorboard=false",
                                           "checkpoint.every=0",
                                           "checkpoint.keep=1000000",
                                           "checkpoint.resume=never",
                                           "checkpoint.best=false",
                                           "other_config=check",
                                           "record.facts=true",
                                           "run.dir=" + dir};
  const std::vector<std::string> theirs = merged(plan_.overrides, spec.overrides);
  RankCommand command{{plan_.program, "train", plan_.config}, variables()};
  for (const std::string& word : merged(theirs, merged(always, ours))) command.argv.push_back(word);
  if (spec.nproc) command.argv.insert(command.argv.end(), {"--nproc", std::to_string(*spec.nproc)});
  return command;
}

RankCommand Runner::external_command(const CaseSpec& spec, const std::string& dir) const {
  replace_text(dir + "/run.json", plan_.external_json);
  RankCommand command{{"/bin/sh", "-c", spec.command}, variables()};
  command.variables.emplace_back("YOKE_COMPARE_RUN", dir + "/run.json");
  command.variables.emplace_back("YOKE_COMPARE_OUT", dir + "/steps.jsonl");
  return command;
}

std::vector<std::pair<std::string, std::string>> Runner::variables() const {
  return {{"OMP_NUM_THREADS", std::to_string(plan_.threads)}};
}

// External programs sometimes abort while they shut down their process groups. So success depends
// on what they wrote, not on how they ended.
RunFacts Runner::external_facts(const std::string& dir, const CommandResult& result) const {
  try {
    return read_external(dir + "/steps.jsonl", plan_.steps);
  } catch (const Error& e) {
    const std::string how = result.ending.ok() ? "" : ending_text(result.ending) + ": ";
    throw Error(YOKE_DATA_LOSS,
                how + e.what() + "; it printed last: " + joined_tail(result.last_lines));
  }
}

}  // namespace yoke::compare
