// The names inside a folder of checkpoints, and what may be removed from it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace yoke {

// Returns the name of a committed checkpoint: "step-00001000".
std::string step_name(int64_t step);
// Returns the step of such a name; nothing for any other name.
std::optional<int64_t> step_of(const std::string& name);
// Returns the start of the name of a temporary folder for `name`: ".step-00001000.tmp-". The caller
// appends a suffix.
std::string temporary_name(const std::string& name);
// Returns the steps of the committed checkpoints, newest first; none if the folder does not exist.
// Throws Error if the folder cannot be listed.
std::vector<int64_t> steps_in(const std::string& folder);
// Returns the path of the newest committed checkpoint that a user may have meant by the path of a
// folder: one in it, in its subfolder `checkpoints` or, if the folder does not exist, beside it. ""
// if there is none.
std::string checkpoint_near(const std::string& folder);
// Returns whether every byte of the checkpoint `path` is what was saved.
bool verifies(const std::string& path);
// Removes the temporary folders that interrupted saves have left, as far as they can be removed.
// The caller must hold the folder's lock, which guarantees that no save is running.
void sweep_temporaries(const std::string& folder);

}  // namespace yoke
