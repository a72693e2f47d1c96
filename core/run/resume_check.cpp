// The checkpoint decides whether something has changed: it has digests of the configuration, a
// sample of the training data, and the config.json of its model. Values of keys are only in
// config.resolved.toml of the run folder, which may have been edited and serves to name the
// changes.
#include "core/run/resume_check.hpp"

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <vector>

#include "core/backend/search.hpp"
#include "core/base/exit_code.hpp"
#include "core/model/hf_config.hpp"
#include "core/run/job_facts.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using Json = nlohmann::json;
using Texts = std::vector<std::string>;

void warn(const std::string& text) {
  std::fprintf(stderr, "%s\n", text.c_str());
}

// Returns how the job differs from the run in a folder, whose config.resolved.toml describes it;
// nothing if that file cannot be read.
std::optional<ResumeChanges> changes_since(const std::string& run, const Job& job) {
  try {
    return resume_changes(load_config(run + "/config.resolved.toml", {}, {}, backend_names),
                          job.config);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Returns whether two texts of config.json describe the same model. Other keys of them may differ.
bool same_model(const std::string& a, const std::string& b) {
  if (a == b) return true;
  try {
    const HfConfig first = parse_hf_config(a, "config.json");
    const HfConfig second = parse_hf_config(b, "config.json");
    return first.family == second.family && first.dims == second.dims;
  } catch (const Error&) {  // another release has written one of them
    return false;
  }
}

// Returns the keys of config.json that have changed the model. If none has done so by itself, these
// are all that differ.
Texts model_changes(const std::string& before, const std::string& now) {
  const Json old_keys = Json::parse(before), keys = Json::parse(now);
  std::set<std::string> names;
  for (const Json* json : {&old_keys, &keys})
    for (const auto& item : json->items()) names.insert(item.key());
  const auto shown = [](const Json& json, const std::string& name) {
    return json.contains(name) ? json.at(name).dump() : "unset";
  };
  Texts differences, changes;
  for (const std::string& name : names) {
    const std::string value = shown(keys, name), old = shown(old_keys, name);
    if (value == old) continue;
    differences.push_back(concat("config.json: ", name, " = ", value, " (", old, " before)"));
    Json changed = old_keys;
    changed.erase(name);
    if (keys.contains(name)) changed[name] = keys.at(name);
    if (!same_model(before, changed.dump())) changes.push_back(differences.back());
  }
  return changes.empty() ? differences : changes;
}

// Returns what has changed in files that the configuration names. Older releases have not recorded
// the data.
Texts content_changes(const Job& job, const CheckpointInfo& saved) {
  Texts changes;
  const std::string data = data_contents(job);
  if (!saved.data.empty() && saved.data != data)
    changes.push_back(concat("contents of data.path = ", data, " (", saved.data, " before)"));
  const std::string before = CheckpointReader(saved.path).hf_config_json();
  const std::string& now = job.model.hf_config_json;
  if (before.empty() || now.empty() || same_model(before, now)) return changes;
  for (const std::string& change : model_changes(before, now)) changes.push_back(change);
  return changes;
}

// Returns the run folder of a checkpoint.
std::string run_of(const std::string& checkpoint) {
  std::filesystem::path path = std::filesystem::absolute(checkpoint).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // it ends with a slash
  return path.parent_path().parent_path().string();
}

}  // namespace

void require_same_run(const Job& job,
                      const std::string& run,
                      const CheckpointInfo& newest,
                      const std::string& what) {
  const Texts contents = content_changes(job, newest);
  if (contents.empty() && newest.config_digest == resume_digest(job.config)) return;
  const std::optional<ResumeChanges> changes = changes_since(run, job);
  const bool named = changes && !changes->tunable.empty();
  // A checkpoint of an older release has no digest of what may not change, so the file decides.
  const bool same_keys =
      newest.config_digest == resume_digest(job.config) ||
      (newest.fixed_digest.empty() ? named && changes->fixed.empty()
                                   : newest.fixed_digest == fixed_digest(job.config));
  if (same_keys && contents.empty()) {
    warn(run + " continues with changed settings: " +
         (named ? join(changes->tunable) : "steps or learning rate"));
    return;
  }
  if (same_keys) {
    throw Refused(kExitUsage,
                  what + ": files that " + run + " uses have changed (" + join(contents) +
                      "); restore them, or start a new run from the checkpoint with "
                      "checkpoint.resume=" +
                      newest.path + ", or from the beginning with checkpoint.resume=never");
  }
  Texts fixed = changes ? changes->fixed : Texts();
  fixed.insert(fixed.end(), contents.begin(), contents.end());
  throw Refused(kExitUsage,
                what + ": " + run + " was made with another configuration (" +
                    (fixed.empty() ? "see its config.resolved.toml" : join(fixed)) +
                    "); use that configuration, or start a new run with checkpoint.resume=never, "
                    "or start from its parameters with checkpoint.resume=" +
                    newest.path);
}

void note_changes(const Job& job, const CheckpointInfo& saved) {
  Texts all = content_changes(job, saved);
  const bool other_keys = saved.config_digest != resume_digest(job.config);
  if (all.empty() && !other_keys) return;
  if (const auto changes = other_keys ? changes_since(run_of(saved.path), job) : std::nullopt) {
    all.insert(all.end(), changes->tunable.begin(), changes->tunable.end());
    all.insert(all.end(), changes->fixed.begin(), changes->fixed.end());
  }
  warn(saved.path + " was saved with other settings" + (all.empty() ? "" : ": " + join(all)));
}

}  // namespace yoke
