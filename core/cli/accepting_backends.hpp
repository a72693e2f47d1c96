// Which backends a run can have.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace yoke {

// Returns those of the backends `names` that accept a run: with which its configuration is sound,
// and whose plan contains no refusal. Prints a note with the reason for each of the others. Throws
// Stop with all reasons if no backend accepts the run, or if `names` is empty. ranks: unset = the
// product of the degrees.
std::vector<std::string> accepting_backends(const std::string& config,
                                            const std::vector<std::string>& overrides,
                                            std::optional<int> ranks,
                                            const std::vector<std::string>& names);

}  // namespace yoke
