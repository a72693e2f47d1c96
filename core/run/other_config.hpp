// Checks a run against a config of another program that a backend reads, such as a ds_config.json.
// No LibTorch.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/backend/loaded_backend.hpp"
#include "core/config/config.hpp"

namespace yoke {

// Returns what a note about a key of the config means in a run file; nothing if the note contains
// no line of a run file, or one that is a comment.
std::optional<OtherValue> value_of(const PlanRemark& note);

// Returns the values of the config that differ from the run's, for keys of training that the run
// leaves unset: those of the tables train, precision, lr_schedule and loss_scale, except for the
// micro-batch, which the plan itself fills in. If the config has several values for a key, the
// first one is returned.
std::vector<OtherValue> unset_keys(const PlanResult& report, const LoadedConfig& config);

// Returns a sentence for the user that lists the values.
std::string filled_note(const std::vector<OtherValue>& values);

// Returns a sentence that lists values of the config which the run does not use, although its own
// are others: its steps, seed, evaluation, checkpoints, metrics and profiles. "" = there are none.
std::string unused_note(const PlanResult& report, const RunConfig& run);

// A backend compares such a config with its plan. The plan has no learning-rate schedule and no
// precision.product, because the host carries out both; for these the backend reports the lines of
// a run file that would have the same effect. Returns one text for each such line whose value
// differs from the run's. The other keys of fp8 are not compared, and keys that the backend itself
// refuses are left out.
std::vector<std::string> disagreements(const PlanResult& report, const RunConfig& run);

}  // namespace yoke
