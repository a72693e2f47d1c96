#include "core/run/other_config.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>
#include <variant>

#include "core/config/schema.hpp"
#include "core/config/toml_file.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

bool is_in_no_plan(std::string_view key) {
  return key.starts_with("lr_schedule.") || key.starts_with("loss_scale.") ||
         key == "train.schedule" || key == "train.lr" || key == "train.warmup" ||
         key == "train.min_lr_factor" || key == "precision.product" ||
         key == "precision.fp8_recipe" || key == "precision.fp8_skip";
}

bool is_refused(const std::string& key, const PlanResult& report) {
  return std::any_of(report.refusals.begin(), report.refusals.end(), [&](const PlanRemark& r) {
    return r.key == key;
  });
}

bool may_be_filled(const std::string& key) {
  const std::string table = key.substr(0, key.find('.'));
  return find_key(key) != nullptr && key != "train.micro_batch" &&
         (table == "train" || table == "precision" || table == "lr_schedule" ||
          table == "loss_scale");
}

// Returns whether two values are equal. A backend computes some numbers from others, such as the
// ratio of two learning rates, and these are rounded.
bool are_equal(const std::optional<Value>& a, const std::optional<Value>& b) {
  constexpr double kRounding = 1e-12;  // relative; far above the rounding of a few operations
  const double* const x = a ? std::get_if<double>(&a->data) : nullptr;
  const double* const y = b ? std::get_if<double>(&b->data) : nullptr;
  if (x == nullptr || y == nullptr) return a == b;
  return std::abs(*x - *y) <= kRounding * std::max(std::abs(*x), std::abs(*y));
}

// Returns whether the run already has the value that a key has in another config.
bool has_value(const RunConfig& run, const Key& key, const std::optional<Value>& value) {
  if (!value || !check_key(key, *value).empty()) return false;
  RunConfig changed = run;
  write_key(key, *value, changed);
  return are_equal(read_key(key, changed), read_key(key, run));
}

// Returns whether a run never takes the key from another config, nor compares it.
bool decides_alone(const std::string& key) {
  const std::string table = key.substr(0, key.find('.'));
  return key == "train.steps" || key == "seed" || key == "data.path" || key == "data.order" ||
         key == "data.split" || key == "data.weights" || table == "eval" || table == "checkpoint" ||
         table == "metrics" || table == "profile";
}

std::string listed(const std::vector<OtherValue>& values) {
  std::vector<std::string> lines;
  for (const OtherValue& v : values)
    lines.push_back(v.key + " = " + v.text + " (" + v.origin + ")");
  return join(lines);
}

}  // namespace

std::optional<OtherValue> value_of(const PlanRemark& note) {
  const size_t equals = note.allowed.find(" = ");
  if (equals == std::string::npos || note.allowed.starts_with('#')) return std::nullopt;
  return OtherValue{note.allowed.substr(0, equals), note.allowed.substr(equals + 3), note.key};
}

std::vector<OtherValue> unset_keys(const PlanResult& report, const LoadedConfig& config) {
  std::set<std::string> unset;
  for (const Resolved& value : config.values)
    if (value.origin == "default" && may_be_filled(value.key)) unset.insert(value.key);
  std::vector<OtherValue> values;
  for (const PlanRemark& note : report.notes) {
    const std::optional<OtherValue> value = value_of(note);
    if (value && unset.erase(value->key) != 0 &&
        !has_value(config.run, *find_key(value->key), parse_toml_value(value->text)))
      values.push_back(*value);
  }
  return values;
}

std::string filled_note(const std::vector<OtherValue>& values) {
  return "keys that are unset here have values of another program's config: " + listed(values);
}

std::string unused_note(const PlanResult& report, const RunConfig& run) {
  std::vector<OtherValue> values;
  for (const PlanRemark& note : report.notes) {
    const std::optional<OtherValue> value = value_of(note);
    if (!value || !decides_alone(value->key)) continue;
    const Key* key = find_key(value->key);
    if (key != nullptr && !has_value(run, *key, parse_toml_value(value->text)))
      values.push_back(*value);
  }
  if (values.empty()) return "";
  return "the run does not use these values of another program's config; set the keys in the run "
         "file: " +
         listed(values);
}

std::vector<std::string> disagreements(const PlanResult& report, const RunConfig& run) {
  std::vector<std::string> faults;
  RunConfig actual = run;
  if (!actual.lr_schedule.total_steps) actual.lr_schedule.total_steps = run.train.steps;
  if (!actual.precision.fp8_recipe) actual.precision.fp8_recipe = "tensorwise";
  for (const PlanRemark& note : report.notes) {
    const std::optional<OtherValue> line = value_of(note);
    if (!line || is_refused(note.key, report)) continue;
    const Key* key = find_key(line->key);
    const auto value = parse_toml_value(line->text);
    if (key == nullptr || !is_in_no_plan(key->name) || !value) continue;
    if (has_value(actual, *key, value)) continue;
    const auto own = read_key(*key, actual);
    faults.push_back(concat(note.key,
                            " (",
                            note.given,
                            ") means ",
                            note.allowed,
                            ", but the run has ",
                            key->name,
                            " = ",
                            own ? to_text(*own) : "unset",
                            run.other_config == "check" ? "; write that line into the run file"
                                                        : "; give it in one of them only"));
  }
  return faults;
}

}  // namespace yoke
