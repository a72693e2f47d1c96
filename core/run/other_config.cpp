#include "core/run/other_config.hpp"

#include <algorithm>

#include "core/config/schema.hpp"
#include "core/config/toml_file.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

bool is_in_no_plan(std::string_view key) {
  return key.starts_with("lr_schedule.") || key.starts_with("loss_scale.") ||
         key == "train.schedule" || key == "train.lr" || key == "train.warmup" ||
         key == "train.min_lr_factor" || key == "precision.product";
}

bool is_refused(const std::string& key, const PlanResult& report) {
  return std::any_of(report.refusals.begin(), report.refusals.end(), [&](const PlanRemark& r) {
    return r.key == key;
  });
}

}  // namespace

std::vector<std::string> disagreements(const PlanResult& report, const RunConfig& run) {
  std::vector<std::string> faults;
  RunConfig actual = run;
  if (!actual.lr_schedule.total_steps) actual.lr_schedule.total_steps = run.train.steps;
  for (const PlanRemark& note : report.notes) {
    const size_t equals = note.allowed.find(" = ");
    if (equals == std::string::npos || is_refused(note.key, report)) continue;
    const Key* key = find_key(std::string_view(note.allowed).substr(0, equals));
    const auto value = parse_toml_value(note.allowed.substr(equals + 3));
    if (key == nullptr || !is_in_no_plan(key->name) || !value) continue;
    const auto own = read_key(*key, actual);
    if (check_key(*key, *value).empty()) {
      RunConfig expected = actual;
      write_key(*key, *value, expected);
      if (read_key(*key, expected) == own) continue;
    }
    faults.push_back(concat(note.key,
                            " (",
                            note.given,
                            ") means ",
                            note.allowed,
                            ", but the run has ",
                            key->name,
                            " = ",
                            own ? to_text(*own) : "unset",
                            "; write that line into the run file, or remove the key"));
  }
  return faults;
}

}  // namespace yoke
